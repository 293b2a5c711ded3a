// Softmax cross-entropy of a chunk of rows, between the products that gpu.go of
// internal/gemm queues.
#pragma once
#include "exp.h"
#include "tanh.h"

// A block has a row. It takes a step of HEAD_FLIGHT logits a thread at a time.
enum { HEAD_FLIGHT = 8 };
DEVICE u32 head_step(Thread t) { return t.threads * HEAD_FLIGHT; }

struct CrossEntropyParams {
    u64 vocab;  // logits of a row: of all classes, or of a tile
    u64 first;  // class of the first of them
    u64 stride; // of rows of bf16 gradients; 0 if there are none
    f32 scale;  // of the gradients
    f32 cap;    // of the logits; 0 for none
    u32 gradients, weighted, last, unused; // last: the tile ends the row
};

DEVICE float weight_of(GLOBAL const f32* weights, u64 row, CrossEntropyParams p) { return p.weighted ? weights[row] : 1.0f; }

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

// head_cap caps the logits in place.
DEVICE void head_cap(Thread t, GLOBAL f32* z, u64 vocab, float cap) {
    UNROLL_1 for (u64 j = t.local; j < vocab; j += t.threads) z[j] = cap * tanh_of(z[j] / cap);
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

// head_total returns Σ exp(z[j] − peak) on every thread.
DEVICE Twofold head_total(Thread t, GLOBAL const f32* z, u64 vocab, float peak, GROUP Twofold* scratch) {
    Twofold total = {0, 0};
    for (u64 from = 0; from < vocab; from += head_step(t)) {
        float x[HEAD_FLIGHT], sum = 0;
        head_logits(t, z, from, vocab, x);
        UNROLL for (u32 e = 0; e < HEAD_FLIGHT; e++) sum += exp_of(x[e] - peak);
        total = twofold_sum(total, Twofold{sum, 0});
    }
    scratch[t.local] = total;
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) scratch[t.local] = twofold_sum(scratch[t.local], scratch[t.local + d]);
    }
    sync_threads();
    return scratch[0];
}

// head_loss returns (peak − z) + log(total), rounded about once.
DEVICE float head_loss(float peak, float z, float total) {
    float below = peak - z, part = below - peak, log = log_of(total);
    if (!is_finite(below)) return below + log;
    return below + (log + ((peak - (below - part)) - (z + part)));
}

// head_gradient returns the gradient of scale times the loss with respect to a
// logit. Exponentials below 2^-60 count as 0, as in softmax.go.
DEVICE float head_gradient(float x, float peak, float factor, float one_hot) {
    float y = exp_of(x - peak);
    return (y < 8.673617379884035e-19f ? 0.0f : y * factor) - one_hot;
}

// cap_slope returns the derivative of the cap where it gave x.
DEVICE float cap_slope(float x, float cap) {
    float tanh = x / cap;
    return 1.0f - tanh * tanh;
}

// head_row overwrites the logits of a row, which are capped, with their gradients, as float, or as
// bf16 at out. The row at out may begin as many elements behind z as a step has:
// what a step writes lies in front of the logits of the next.
DEVICE void head_row(Thread t, GLOBAL f32* z, GLOBAL bf16* out, i32 target, float peak, float total, float scale, CrossEntropyParams p) {
    float factor = scale / total;
    for (u64 from = 0; from < p.vocab; from += head_step(t)) {
        float x[HEAD_FLIGHT];
        head_logits(t, z, from, p.vocab, x);
        if (p.stride) sync_threads();
        UNROLL for (u32 e = 0; e < HEAD_FLIGHT; e++) {
            u64 j = from + e * t.threads + t.local;
            if (j >= p.vocab) break;
            float g = 0;
            if (target >= 0) {
                g = head_gradient(x[e], peak, factor, p.first + j == (u64)target ? scale : 0.0f);
                if (p.cap != 0) g *= cap_slope(x[e], p.cap);
            }
            if (p.stride) out[j] = narrow<bf16>(g);
            else z[j] = g;
        }
    }
}

DEVICE void head(Thread t, GLOBAL f32* logits, GLOBAL f32* losses, GLOBAL const i32* targets, GLOBAL const f32* weights,
                 CrossEntropyParams p, GROUP float* peaks, GROUP Twofold* sums) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    i32 target = targets[t.block];
    float loss = 0, peak = 0, total = 1, weight = 1;
    if (target >= 0) {
        if (p.cap != 0) head_cap(t, z, p.vocab, p.cap);
        float x = z[target];
        weight = weight_of(weights, t.block, p);
        peak = head_peak(t, z, p.vocab, peaks);
        Twofold sum = head_total(t, z, p.vocab, peak, sums);
        total = sum.hi + sum.lo;
        loss = weight * head_loss(peak, x, total);
    }
    if (t.local == 0) losses[t.block] = loss;
    if (p.gradients) head_row(t, z, (GLOBAL bf16*)logits + t.block * p.stride, target, peak, total, p.scale * weight, p);
}

#define HEAD(threads)                                                                                              \
    KERNEL(fused_cross_entropy_##threads, threads, OPERAND(f32, logits, 0), OPERAND(f32, losses, 1),               \
           OPERAND(const i32, targets, 2), OPERAND(const f32, weights, 3), PARAMS(CrossEntropyParams, p)) {        \
        SHARED(float, peaks, threads / 32);                                                                        \
        SHARED(Twofold, sums, threads);                                                                            \
        head(THREAD, logits, losses, targets, weights, p, peaks, sums);                                            \
    }
HEAD(64)
HEAD(512)

// ---- tiles of the vocabulary: fold adds the logits of a tile to the statistics of the rows,
// and after the last tile has the losses; tile makes gradients of logits that are computed again.

// RowStats is rowStats of crossentropy_tiles.go.
struct RowStats { f32 peak, hi, lo, target; };

DEVICE void head_fold(Thread t, GLOBAL f32* logits, GLOBAL RowStats* stats, GLOBAL f32* losses, GLOBAL const i32* targets,
                      GLOBAL const f32* weights, CrossEntropyParams p, GROUP float* peaks, GROUP Twofold* sums) {
    const float none = bits_float(0xff800000u);
    GLOBAL f32* z = logits + t.block * p.vocab;
    i32 target = targets[t.block];
    if (target < 0) {
        if (t.local == 0 && p.last) losses[t.block] = 0;
        return;
    }
    RowStats s = {none, 0, 0, 0};
    if (p.first) s = stats[t.block];
    if (p.cap != 0) head_cap(t, z, p.vocab, p.cap);
    float peak = maximum(s.peak, head_peak(t, z, p.vocab, peaks));
    // As long as there are logits of -Inf and NaN only, 0 takes the place of the peak.
    Twofold sum = head_total(t, z, p.vocab, peak == none ? 0.0f : peak, sums);
    if (t.local != 0) return;
    if (peak != s.peak) {
        float scale = exp_of(s.peak - peak), high = s.hi * scale;
        s.lo = fused_mul_add(s.lo, scale, fused_mul_add(s.hi, scale, -high));
        s.hi = high;
    }
    sum = twofold_sum(Twofold{s.hi, s.lo}, sum);
    s = RowStats{peak, sum.hi, sum.lo, s.target};
    if ((u64)target >= p.first && (u64)target - p.first < p.vocab) s.target = z[(u64)target - p.first];
    stats[t.block] = s;
    if (p.last) losses[t.block] = weight_of(weights, t.block, p) * head_loss(peak, s.target, sum.hi + sum.lo);
}

DEVICE void head_tile(Thread t, GLOBAL f32* logits, GLOBAL const RowStats* stats, GLOBAL const i32* targets,
                      GLOBAL const f32* weights, CrossEntropyParams p) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    i32 target = targets[t.block];
    RowStats s = stats[t.block];
    if (target >= 0 && p.cap != 0) head_cap(t, z, p.vocab, p.cap);
    head_row(t, z, (GLOBAL bf16*)logits + t.block * p.stride, target, s.peak, s.hi + s.lo, p.scale * weight_of(weights, t.block, p), p);
}

#define HEAD_TILE(threads)                                                                                         \
    KERNEL(fused_cross_entropy_fold_##threads, threads, OPERAND(f32, logits, 0), OPERAND(RowStats, stats, 1),      \
           OPERAND(f32, losses, 2), OPERAND(const i32, targets, 3), OPERAND(const f32, weights, 4),                \
           PARAMS(CrossEntropyParams, p)) {                                                                        \
        SHARED(float, peaks, threads / 32);                                                                        \
        SHARED(Twofold, sums, threads);                                                                            \
        head_fold(THREAD, logits, stats, losses, targets, weights, p, peaks, sums);                                \
    }                                                                                                              \
    KERNEL(fused_cross_entropy_tile_##threads, threads, OPERAND(f32, logits, 0), OPERAND(const RowStats, stats, 1), \
           OPERAND(const i32, targets, 2), OPERAND(const f32, weights, 3), PARAMS(CrossEntropyParams, p)) {        \
        head_tile(THREAD, logits, stats, targets, weights, p);                                                     \
    }
HEAD_TILE(64)
HEAD_TILE(512)

// The sums of dx over the tiles, in the type of dx.
#define HEAD_STORE(T)                                                                                              \
    KERNEL(fused_cross_entropy_store_##T, 256, OPERAND(T, dx, 0), OPERAND(const f32, sums, 1),                     \
           PARAMS(Elements, p)) {                                                                                  \
        Thread t = THREAD;                                                                                         \
        for (u64 i = (u64)t.block * t.threads + t.local; i < p.n; i += (u64)t.blocks * t.threads)                  \
            dx[i] = narrow<T>(sums[i]);                                                                            \
    }
FOR_FLOATS(HEAD_STORE)

// ---- the sum of losses, added in their order to a double.

struct LossSumParams {
    u64 rows;
    u32 first; // start with 0
    u32 unused;
};

#if defined(SNUG_CUDA)

DEVICE u64 double_add(u64 sum, float x) {
    return __builtin_bit_cast(u64, __builtin_bit_cast(double, sum) + (double)x);
}

#else // without doubles, for numbers that are not negative

// double_of returns the bits of x as a double.
DEVICE u64 double_of(float x) {
    u32 bits = float_bits(x) & 0x7fffffffu, exponent = bits >> 23;
    u64 fraction = bits & 0x7fffffu;
    if (exponent == 255) return (u64)2047 << 52 | fraction << 29;
    if (bits == 0) return 0;
    if (exponent > 0) return (u64)(exponent + 896) << 52 | fraction << 29;
    u32 shift = 0;
    while (!(fraction << shift & 0x800000u)) shift++;
    return (u64)(897 - shift) << 52 | (fraction << shift & 0x7fffffu) << 29;
}

// double_add returns the bits of sum + x, to nearest even.
DEVICE u64 double_add(u64 sum, float x) {
    u64 term = double_of(x), a = greatest(sum, term), b = least(sum, term); // the order of doubles
    u64 one = (u64)1 << 52, exponent = a >> 52, apart = exponent - (b >> 52);
    if (exponent == 2047 || b == 0) return a;
    u64 high = ((a & (one - 1)) | one) << 10, low = ((b & (one - 1)) | one) << 10;
    u64 shifted = apart < 63 ? low >> apart : 0;
    shifted |= apart >= 63 || shifted << apart != low; // one bit stands for all that are cut off
    high += shifted;
    if (high >> 63) {
        high = high >> 1 | (high & 1);
        exponent++;
    }
    u64 kept = high >> 10, cut = high & 1023;
    kept += cut > 512 || (cut == 512 && (kept & 1));
    return ((exponent - 1) << 52) + kept; // the first bit of kept adds to the exponent
}

#endif

KERNEL(fused_cross_entropy_sum, 256, OPERAND(u64, sum, 0), OPERAND(const f32, losses, 1), PARAMS(LossSumParams, p)) {
    Thread t = THREAD;
    SHARED(float, some, 256);
    u64 bits = p.first ? 0 : sum[0];
    for (u64 from = 0; from < p.rows; from += 256) {
        if (from + t.local < p.rows) some[t.local] = losses[from + t.local];
        sync_threads();
        u32 n = (u32)least(p.rows - from, (u64)256);
        if (t.local == 0)
            for (u32 i = 0; i < n; i++) bits = double_add(bits, some[i]);
        sync_threads();
    }
    if (t.local == 0) sum[0] = bits;
}
