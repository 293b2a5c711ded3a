// What kernels share in both languages: element types, their conversions, and
// sums over warps and blocks. Included by cuda.h and metal.h.
#pragma once

struct f16 { u16 bits; };
struct bf16 { u16 bits; };

// FOR_FLOATS makes a kernel for every element type.
#define FOR_FLOATS(MAKE) MAKE(f32) MAKE(f16) MAKE(bf16)

// ---- conversions, as internal/half defines them: to nearest, ties to even;
// NaNs stay NaN and quiet. They keep the upper bits of their payload but for f16 on NVIDIA's
// GPUs, whose instruction widens them all to one.

DEVICE bool is_nan(float x) { return (float_bits(x) & 0x7fffffffu) > 0x7f800000u; }
DEVICE bool is_finite(float x) { return (float_bits(x) & 0x7f800000u) != 0x7f800000u; }

#if !defined(SNUG_NARROW_F16)
DEVICE u16 narrow_f16(float x) {
    u32 b = float_bits(x), sign = b >> 16 & 0x8000u, a = b & 0x7fffffffu;
    if (a >= 0x47800000u) return (u16)(sign | 0x7c00u); // 2^16 and up
    if (a < 0x38800000u) { // subnormal there: add so that the unit is 2^-24
        float y = bits_float(a) + 0.5f;
        return (u16)(sign | (float_bits(y) - 0x3f000000u));
    }
    a += 0xfffu + (a >> 13 & 1);
    return (u16)(sign | ((a - 0x38000000u) >> 13));
}
#endif

#if !defined(SNUG_WIDEN_F16)
DEVICE float widen_f16(u16 h) {
    u32 sign = (u32)(h & 0x8000u) << 16, a = h & 0x7fffu;
    if (a >= 0x7c00u) return bits_float(sign | 0x7f800000u | (a & 0x3ffu) << 13);
    if (a < 0x400u) { // subnormal
        float x = (float)a * 5.9604644775390625e-8f; // 2^-24
        return bits_float(sign | float_bits(x));
    }
    return bits_float(sign | ((a << 13) + 0x38000000u));
}
#endif

DEVICE float quiet(float x) { return is_nan(x) ? bits_float(float_bits(x) | 0x00400000u) : x; }

DEVICE float widen(f32 x) { return x; }
DEVICE float widen(bf16 x) { return bits_float((u32)x.bits << 16); }
DEVICE float widen(f16 x) { return quiet(widen_f16(x.bits)); }

// narrow<T>(x) rounds x to T.
template <class T> struct Narrow;
template <> struct Narrow<f32> {
    static DEVICE_MEMBER f32 of(float x) { return x; }
};
template <> struct Narrow<bf16> {
    static DEVICE_MEMBER bf16 of(float x) {
        u32 b = float_bits(x);
        if (is_nan(x)) return bf16{(u16)(b >> 16 | 0x40u)};
        return bf16{(u16)((b + 0x7fffu + (b >> 16 & 1)) >> 16)};
    }
};
template <> struct Narrow<f16> {
    static DEVICE_MEMBER f16 of(float x) {
        u32 b = float_bits(x);
        if (is_nan(x)) return f16{(u16)((b >> 16 & 0x8000u) | 0x7e00u | (b >> 13 & 0x3ffu))};
        return f16{narrow_f16(x)};
    }
};
template <class T> DEVICE T narrow(float x) { return Narrow<T>::of(x); }

// ---- sums and maxima over a warp; every lane has the result. The order of
// the terms is fixed, so the bits are the same in every run.

DEVICE u32 lane_of(Thread t) { return t.local % WARP; }
DEVICE u32 warp_of(Thread t) { return t.local / WARP; }

DEVICE float warp_sum(float x) {
    for (u32 d = WARP / 2; d > 0; d /= 2) x += shuffle_xor(x, d);
    return x;
}

DEVICE float warp_max(float x) {
    for (u32 d = WARP / 2; d > 0; d /= 2) x = maximum(x, shuffle_xor(x, d));
    return x;
}

// block_sum adds x over the block; every thread has the result. scratch has a
// float for every warp and may be used again after the call.
DEVICE float block_sum(Thread t, float x, GROUP float* scratch) {
    x = warp_sum(x);
    if (lane_of(t) == 0) scratch[warp_of(t)] = x;
    sync_threads();
    float sum = 0;
    for (u32 w = 0; w < t.threads / WARP; w++) sum += scratch[w];
    sync_threads();
    return sum;
}

DEVICE float block_max(Thread t, float x, GROUP float* scratch) {
    x = warp_max(x);
    if (lane_of(t) == 0) scratch[warp_of(t)] = x;
    sync_threads();
    float most = scratch[0];
    for (u32 w = 1; w < t.threads / WARP; w++) most = maximum(most, scratch[w]);
    sync_threads();
    return most;
}

// ---- random numbers: Philox4x32-10, as internal/philox defines it.

struct Words4 { u32 word[4]; };

// philox returns the words of block number `number` of a stream.
DEVICE Words4 philox(u64 seed, u64 tensor, u64 number) {
    u32 x0 = (u32)number, x1 = (u32)(number >> 32), x2 = (u32)tensor, x3 = (u32)(tensor >> 32);
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        u32 h0 = mul_high(0xD2511F53u, x0), l0 = 0xD2511F53u * x0;
        u32 h1 = mul_high(0xCD9E8D57u, x2), l1 = 0xCD9E8D57u * x2;
        x0 = h1 ^ x1 ^ k0;
        x1 = l1;
        x2 = h0 ^ x3 ^ k1;
        x3 = l0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words4{{x0, x1, x2, x3}};
}
