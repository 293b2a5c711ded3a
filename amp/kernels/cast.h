// Conversions between element types.
#pragma once
#include "pack.h"
#include "random.h"

// at_most returns x with a magnitude of at most limit, which may be infinite.
// NaNs stay.
DEVICE float at_most(float x, float limit) { return x > limit ? limit : x < -limit ? -limit : x; }

// ---- cast: dst[i] = src[i], at most limit, to nearest even.

struct CastParams {
    u64 n;
    f32 limit;
    u32 wide;
};

template <class D> struct Rounded {
    float limit;
    template <class S> DEVICE_MEMBER D operator()(S x) const { return narrow<D>(at_most(widen(x), limit)); }
};

#define CAST(S, D)                                                                                         \
    KERNEL(amp_cast_##S##_##D, 256, OPERAND(D, dst, 0), OPERAND(const S, src, 1), PARAMS(CastParams, p)) { \
        transform<D, S>(THREAD, dst, src, p.n, p.wide, Rounded<D>{p.limit});                               \
    }
CAST(f32, f32)
CAST(f32, f16)
CAST(f32, bf16)
CAST(f16, f32)
CAST(f16, f16)
CAST(f16, bf16)
CAST(bf16, f32)
CAST(bf16, f16)
CAST(bf16, bf16)

// ---- random cast: dst[i] = src[i], at most limit, or a neighbour, by the 16-bit
// half number first + i of a stream. A thread takes the 8 elements of one Philox
// block at a time.

struct RandomParams {
    u64 n, seed, tensor, first;
    f32 limit;
    u32 wide; // whole groups of 8 lie at multiples of 16 bytes
};

template <class D, class S> DEVICE void round_all(Thread t, GLOBAL D* dst, GLOBAL const S* src, RandomParams p) {
    u32 skip = (u32)(p.first % 8); // halves of the first block that come before
    u64 groups = (p.n + skip + 7) / 8, step = (u64)t.blocks * t.threads;
    for (u64 i = (u64)t.block * t.threads + t.local; i < groups; i += step) {
        Words4 r = philox(p.seed, p.tensor, p.first / 8 + i);
        i64 at = (i64)(i * 8) - skip;
        if (p.wide && at >= 0 && at + 8 <= (i64)p.n) {
            S x[8];
            load_eight(x, src + at);
            Pack<D, 8> y;
            UNROLL for (u32 k = 0; k < 8; k++) y.x[k] = round_at_random<D>(at_most(widen(x[k]), p.limit), half_of(r, k));
            store_pack<8>(dst + at, y);
            continue;
        }
        UNROLL for (u32 k = 0; k < 8; k++) {
            i64 j = at + k;
            if (j >= 0 && j < (i64)p.n) dst[j] = round_at_random<D>(at_most(widen(src[j]), p.limit), half_of(r, k));
        }
    }
}

#define RANDOM(S, D)                                                                                           \
    KERNEL(amp_random_##S##_##D, 256, OPERAND(D, dst, 0), OPERAND(const S, src, 1), PARAMS(RandomParams, p)) { \
        round_all<D, S>(THREAD, dst, src, p);                                                                  \
    }
RANDOM(f32, f16)
RANDOM(f32, bf16)
RANDOM(f16, f16)
RANDOM(f16, bf16)
RANDOM(bf16, f16)
RANDOM(bf16, bf16)
