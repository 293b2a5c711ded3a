// Rows of logits between the products that package fused queues: softmax cross-entropy, log-probabilities
// of targets, and the divergence of two softmaxes.
#pragma once
#include "exp.h"
#include "tanh.h"

// A block has a row. It takes a step of HEAD_FLIGHT logits a thread at a time.
enum { HEAD_FLIGHT = 8 };
DEVICE u32 head_step(Thread t) { return t.threads * HEAD_FLIGHT; }

struct HeadParams { // headParams of gpu_head.go
    u64 vocab;  // logits of a row: of all classes, or of a tile
    u64 first;  // class of the first of them
    u64 stride; // of rows of bf16 gradients; 0 if there are none
    f32 scale;  // of the gradients, 1/Temperature included
    f32 cap;    // of the logits; 0 for none
    f32 over;   // 1/Temperature
    f32 smoothing, share; // share: smoothing over all classes
    f32 z_loss;
    u32 gradients, weighted;
    u32 last;     // the tile ends the row
    u32 finished; // the logits are capped already
    u32 targets;  // of a row
    u32 slopes;   // there are derivatives of lse
};

DEVICE float weight_of(GLOBAL const f32* weights, u64 row, HeadParams p) { return p.weighted ? weights[row] : 1.0f; }

// Twofold is a sum of floats, hi + lo, with about 44 bits.
struct Twofold { float hi, lo; };

DEVICE Twofold twofold_sum(Twofold a, Twofold b) {
    float sum = a.hi + b.hi, part = sum - a.hi;
    return Twofold{sum, (a.hi - (sum - part)) + (b.hi - part) + a.lo + b.lo};
}

// log_of returns the logarithm of x ≥ 1, within 2 ulp: x = 2^n·m with m between
// √½ and √2, and log m = 2·artanh(s) with s = (m − 1)/(m + 1).
DEVICE float log_of(float x) {
    if (!is_finite(x)) return x;
    u32 n = (float_bits(x) - 0x3f3504f3u) >> 23;
    float m = bits_float(float_bits(x) - (n << 23)), s = (m - 1.0f) / (m + 1.0f), q = s * s;
    float p = fused_mul_add(q, 0.11111111f, 0.14285715f); // 1/9, 1/7, 1/5, 1/3
    p = fused_mul_add(q, p, 0.2f);
    p = fused_mul_add(q, p, 0.33333334f) * q;
    s *= 2.0f;
    return fused_mul_add((f32)n, 0.693359375f, s + fused_mul_add((f32)n, -2.12194440e-4f, s * p));
}

// head_logits loads the thread's logits of the step at `from`, -Inf beyond the
// last.
DEVICE void head_logits(Thread t, GLOBAL const f32* z, u64 from, u64 vocab, PRIVATE float* x) {
    UNROLL for (u32 e = 0; e < HEAD_FLIGHT; e++) {
        u64 j = from + e * t.threads + t.local;
        x[e] = j < vocab ? z[j] : bits_float(0xff800000u);
    }
}

// head_cap caps the logits in place, and divides them by the temperature. Without a cap the products
// were divided.
DEVICE void head_cap(Thread t, GLOBAL f32* z, HeadParams p, float cap) {
    if (cap == 0 || p.finished) return;
    float limit = cap * p.over;
    UNROLL_1 for (u64 j = t.local; j < p.vocab; j += t.threads) z[j] = limit * tanh_of(z[j] / cap);
    sync_threads();
}

// head_peak returns the greatest logit; NaNs do not count.
DEVICE float head_peak(Thread t, GLOBAL const f32* z, u64 vocab, GROUP float* scratch) {
    float peak = bits_float(0xff800000u);
    for (u64 from = 0; from < vocab; from += head_step(t)) {
        float x[HEAD_FLIGHT];
        head_logits(t, z, from, vocab, x);
        UNROLL for (u32 e = 0; e < HEAD_FLIGHT; e++) peak = maximum(peak, x[e]);
    }
    return block_max(t, peak, scratch);
}

// twofold_total returns the sum of what all threads have, on every thread.
DEVICE Twofold twofold_total(Thread t, Twofold total, GROUP Twofold* scratch) {
    scratch[t.local] = total;
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) scratch[t.local] = twofold_sum(scratch[t.local], scratch[t.local + d]);
    }
    sync_threads();
    total = scratch[0];
    sync_threads(); // before scratch is used again
    return total;
}

// head_total returns Σ exp(z[j] − peak) on every thread.
DEVICE Twofold head_total(Thread t, GLOBAL const f32* z, u64 vocab, float peak, GROUP Twofold* scratch) {
    Twofold total = {0, 0};
    for (u64 from = 0; from < vocab; from += head_step(t)) {
        float x[HEAD_FLIGHT], sum = 0;
        head_logits(t, z, from, vocab, x);
        UNROLL for (u32 e = 0; e < HEAD_FLIGHT; e++) sum += exp_of(x[e] - peak);
        total = twofold_sum(total, Twofold{sum, 0});
    }
    return twofold_total(t, total, scratch);
}

// head_sum returns Σ z[j] on every thread.
DEVICE float head_sum(Thread t, GLOBAL const f32* z, u64 vocab, GROUP Twofold* scratch) {
    Twofold total = {0, 0};
    UNROLL_1 for (u64 j = t.local; j < vocab; j += t.threads) total = twofold_sum(total, Twofold{z[j], 0});
    return twofold_total(t, total, scratch).hi;
}

// head_loss returns (peak − z) + log(total), rounded about once.
DEVICE float head_loss(float peak, float z, float total) {
    float below = peak - z, part = below - peak, log = log_of(total);
    if (!is_finite(below)) return below + log;
    return below + (log + ((peak - (below - part)) - (z + part)));
}

// RowStats is rowStats of softmax.go.
struct RowStats { f32 peak, hi, lo, aim; };

DEVICE RowStats stats_begun() { return RowStats{bits_float(0xff800000u), 0, 0, 0}; }

// stats_rise brings the statistics to a peak. It returns the base of exponentials: as long as there are logits of -Inf
// and NaN only, 0 takes the place of the peak.
DEVICE float stats_rise(PRIVATE RowStats* s, float peak, PRIVATE float* factor) {
    *factor = 1;
    if (peak != s->peak) {
        *factor = exp_of(s->peak - peak);
        float high = s->hi * *factor;
        s->lo = fused_mul_add(s->lo, *factor, fused_mul_add(s->hi, *factor, -high));
        s->hi = high;
    }
    s->peak = peak;
    return peak == bits_float(0xff800000u) ? 0.0f : peak;
}

// stats_fold adds the logits of a row, or of a tile of it.
DEVICE void stats_fold(Thread t, PRIVATE RowStats* s, GLOBAL const f32* z, u64 vocab, GROUP float* peaks, GROUP Twofold* sums) {
    float factor, base = stats_rise(s, maximum(s->peak, head_peak(t, z, vocab, peaks)), &factor);
    Twofold sum = twofold_sum(Twofold{s->hi, s->lo}, head_total(t, z, vocab, base, sums));
    s->hi = sum.hi;
    s->lo = sum.lo;
}

// flushed is an exponential, or 0 below 2^-60, as in softmax.go.
DEVICE float flushed(float y) { return y < 8.673617379884035e-19f ? 0.0f : y; }

// Slopes say how logits become gradients, see slopes of softmax.go.
struct Slopes {
    float base, factor, shift;
    GLOBAL const f32* less; // logits of another softmax; null for none
    float less_base, less_factor;
    GLOBAL const i32* targets;
    GLOBAL const f32* hits; // null: 1
    float hit;
    u32 count; // of targets
};

DEVICE Slopes slopes_of(float base, float factor) {
    return Slopes{base, factor, 0, (GLOBAL const f32*)0, 0, 0, (GLOBAL const i32*)0, (GLOBAL const f32*)0, 0, 0};
}

// cap_slope returns the derivative of a cap where it gave x.
DEVICE float cap_slope(float x, float limit) {
    float tanh = x / limit;
    return 1.0f - tanh * tanh;
}

// hits_of returns the sum of the hits of class c.
DEVICE float hits_of(PRIVATE const Slopes& s, u64 c) {
    float hits = 0;
    UNROLL_1 for (u32 k = 0; k < s.count; k++)
        if (s.targets[k] >= 0 && (u64)s.targets[k] == c) hits += s.hits ? s.hits[k] : 1.0f;
    return hits;
}

// hits_in says whether there are targets from class `from` on, fewer than n behind it.
DEVICE bool hits_in(PRIVATE const Slopes& s, u64 from, u32 n) {
    bool some = false;
    UNROLL_1 for (u32 k = 0; k < s.count; k++) some = some || (s.targets[k] >= 0 && (u64)s.targets[k] - from < n);
    return some;
}

// head_row overwrites the logits of a row, which are finished, with their gradients, as float, or as
// bf16 at out. The row at out may begin as many elements behind z as a step has:
// what a step writes lies in front of the logits of the next.
DEVICE void head_row(Thread t, GLOBAL f32* z, GLOBAL bf16* out, bool ignored, Slopes s, HeadParams p) {
    if (ignored) {
        UNROLL_1 for (u64 j = t.local; j < p.vocab; j += t.threads) {
            if (p.stride) out[j] = narrow<bf16>(0.0f);
            else z[j] = 0;
        }
        return;
    }
    for (u64 from = 0; from < p.vocab; from += head_step(t)) {
        float x[HEAD_FLIGHT];
        head_logits(t, z, from, p.vocab, x);
        if (p.stride) sync_threads();
        bool hits = hits_in(s, p.first + from, head_step(t));
        UNROLL for (u32 e = 0; e < HEAD_FLIGHT; e++) {
            u64 j = from + e * t.threads + t.local;
            if (j >= p.vocab) break;
            float g = flushed(exp_of(x[e] - s.base)) * s.factor + s.shift;
            if (s.less) g -= flushed(exp_of(s.less[j] - s.less_base)) * s.less_factor;
            if (hits) g -= s.hit * hits_of(s, p.first + j);
            if (p.cap != 0) g *= cap_slope(x[e], p.cap * p.over);
            if (p.stride) out[j] = narrow<bf16>(g);
            else z[j] = g;
        }
    }
}

DEVICE GLOBAL bf16* narrow_row(Thread t, GLOBAL f32* logits, HeadParams p) { return (GLOBAL bf16*)logits + t.block * p.stride; }

// HEAD_KERNELS makes kernels for short and for long rows; HEAD_SCRATCH declares what their sums use.
#define HEAD_KERNELS(MAKE) MAKE(64) MAKE(512)
#define HEAD_SCRATCH(threads)              \
    SHARED(float, peaks, threads / 32);    \
    SHARED(Twofold, sums, threads)

#include "crossentropy.h"
#include "distill.h"
#include "logprobs.h"

// ---- around the rows

// The bias of the products, times 1/Temperature unless a cap comes first: p.over.
struct HeadBiasParams {
    u64 rows, vocab;
    f32 over;
    u32 unused;
};

#define HEAD_BIAS(T)                                                                                               \
    KERNEL(fused_head_bias_##T, 256, OPERAND(f32, logits, 0), OPERAND(const T, bias, 1), PARAMS(HeadBiasParams, p)) { \
        Thread t = THREAD;                                                                                         \
        for (u64 j = (u64)t.block * t.threads + t.local; j < p.vocab; j += (u64)t.blocks * t.threads) {            \
            float b = p.over * widen(bias[j]);                                                                     \
            for (u64 r = 0; r < p.rows; r++) logits[r * p.vocab + j] += b;                                         \
        }                                                                                                          \
    }
FOR_FLOATS(HEAD_BIAS)

// The sums of the columns of gradients: dbias = beta·dbias + alpha·Σ, without dbias for a beta of 0.
struct HeadColumnsParams {
    u64 rows, vocab, stride;
    f32 alpha, beta;
};

#define HEAD_COLUMNS(T)                                                                                            \
    KERNEL(fused_head_columns_##T, 256, OPERAND(f32, dbias, 0), OPERAND(const T, z, 1), PARAMS(HeadColumnsParams, p)) { \
        Thread t = THREAD;                                                                                         \
        for (u64 j = (u64)t.block * t.threads + t.local; j < p.vocab; j += (u64)t.blocks * t.threads) {            \
            float sum = 0;                                                                                         \
            for (u64 r = 0; r < p.rows; r++) sum += widen(z[r * p.stride + j]);                                    \
            sum *= p.alpha;                                                                                        \
            dbias[j] = p.beta == 0 ? sum : fused_mul_add(p.beta, dbias[j], sum);                                   \
        }                                                                                                          \
    }
HEAD_COLUMNS(f32)
HEAD_COLUMNS(bf16)

// The sums of dx over the tiles, in the type of dx.
#define HEAD_STORE(T)                                                                                              \
    KERNEL(fused_head_store_##T, 256, OPERAND(T, dx, 0), OPERAND(const f32, sums, 1), PARAMS(Elements, p)) {       \
        Thread t = THREAD;                                                                                         \
        for (u64 i = (u64)t.block * t.threads + t.local; i < p.n; i += (u64)t.blocks * t.threads)                  \
            dx[i] = narrow<T>(sums[i]);                                                                            \
    }
FOR_FLOATS(HEAD_STORE)
