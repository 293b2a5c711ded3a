// Softmax cross-entropy of a chunk of rows, between the products that gpu.go of
// internal/gemm queues.
#pragma once
#include "exp.h"

// A block has a row. It takes a step of HEAD_FLIGHT logits a thread at a time.
enum { HEAD_FLIGHT = 8 };
DEVICE u32 head_step(Thread t) { return t.threads * HEAD_FLIGHT; }

struct CrossEntropyParams {
    u64 vocab;
    u64 stride; // of rows of bf16 gradients; 0 if there are none
    f32 scale;  // of the gradients
    u32 gradients;
};

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
DEVICE float head_total(Thread t, GLOBAL const f32* z, u64 vocab, float peak, GROUP Twofold* scratch) {
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
    return scratch[0].hi + scratch[0].lo;
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

// head_row overwrites the logits of a row with their gradients, as float, or as
// bf16 at out. The row at out may begin as many elements behind z as a step has:
// what a step writes lies in front of the logits of the next.
DEVICE void head_row(Thread t, GLOBAL f32* z, GLOBAL bf16* out, i32 target, float peak, float total, CrossEntropyParams p) {
    float factor = p.scale / total;
    for (u64 from = 0; from < p.vocab; from += head_step(t)) {
        float x[HEAD_FLIGHT];
        head_logits(t, z, from, p.vocab, x);
        if (p.stride) sync_threads();
        UNROLL for (u32 e = 0; e < HEAD_FLIGHT; e++) {
            u64 j = from + e * t.threads + t.local;
            if (j >= p.vocab) break;
            float g = target < 0 ? 0.0f : head_gradient(x[e], peak, factor, j == (u64)target ? p.scale : 0.0f);
            if (p.stride) out[j] = narrow<bf16>(g);
            else z[j] = g;
        }
    }
}

DEVICE void head(Thread t, GLOBAL f32* logits, GLOBAL f32* losses, GLOBAL const i32* targets, CrossEntropyParams p,
                 GROUP float* peaks, GROUP Twofold* sums) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    i32 target = targets[t.block];
    float loss = 0, peak = 0, total = 1;
    if (target >= 0) {
        float x = z[target];
        peak = head_peak(t, z, p.vocab, peaks);
        total = head_total(t, z, p.vocab, peak, sums);
        loss = head_loss(peak, x, total);
    }
    if (t.local == 0) losses[t.block] = loss;
    if (p.gradients) head_row(t, z, (GLOBAL bf16*)logits + t.block * p.stride, target, peak, total, p);
}

#define HEAD(threads)                                                                                              \
    KERNEL(fused_cross_entropy_##threads, threads, OPERAND(f32, logits, 0), OPERAND(f32, losses, 1),               \
           OPERAND(const i32, targets, 2), PARAMS(CrossEntropyParams, p)) {                                        \
        SHARED(float, peaks, threads / 32);                                                                        \
        SHARED(Twofold, sums, threads);                                                                            \
        head(THREAD, logits, losses, targets, p, peaks, sums);                                                     \
    }
HEAD(64)
HEAD(512)

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
