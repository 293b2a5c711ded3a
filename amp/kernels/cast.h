// Conversions between element types.
#pragma once
#include "pack.h"

// ---- cast: dst[i] = src[i], to nearest even.

struct CastParams {
    u64 n;
    u32 wide, unused;
};

template <class D> struct Rounded {
    template <class S> DEVICE_MEMBER D operator()(S x) const { return narrow<D>(widen(x)); }
};

#define CAST(S, D)                                                                                         \
    KERNEL(amp_cast_##S##_##D, 256, OPERAND(D, dst, 0), OPERAND(const S, src, 1), PARAMS(CastParams, p)) { \
        transform<D, S>(THREAD, dst, src, p.n, p.wide, Rounded<D>());                                      \
    }
CAST(f32, f16)
CAST(f32, bf16)
CAST(f16, f32)
CAST(f16, bf16)
CAST(bf16, f32)
CAST(bf16, f16)

// ---- stochastic cast: dst[i] = src[i] or a neighbour, by the 16-bit half
// number first + i of a stream. A thread takes the 8 elements of one Philox
// block at a time.

struct StochasticParams {
    u64 n, seed, tensor, first;
    u32 wide, unused; // whole groups of 8 lie at multiples of 16 bytes
};

// half_of returns a 16-bit half of a block, the lower one of a word first.
DEVICE u32 half_of(PRIVATE const Words4& r, u32 i) { return r.word[i / 2] >> 16 * (i % 2) & 0xffffu; }

DEVICE bf16 round_at_random(float x, u32 draw) {
    if (is_nan(x)) return narrow<bf16>(x);
    return bf16{(u16)((float_bits(x) + draw) >> 16)};
}

KERNEL(amp_cast_stochastic, 256, OPERAND(bf16, dst, 0), OPERAND(const f32, src, 1), PARAMS(StochasticParams, p)) {
    Thread t = THREAD;
    u32 skip = (u32)(p.first % 8); // halves of the first block that come before
    u64 groups = (p.n + skip + 7) / 8, step = (u64)t.blocks * t.threads;
    for (u64 i = (u64)t.block * t.threads + t.local; i < groups; i += step) {
        Words4 r = philox(p.seed, p.tensor, p.first / 8 + i);
        i64 at = (i64)(i * 8) - skip;
        if (p.wide && at >= 0 && at + 8 <= (i64)p.n) {
            Pack<f32, 4> low = *(GLOBAL const Pack<f32, 4>*)(src + at), high = *(GLOBAL const Pack<f32, 4>*)(src + at + 4);
            Pack<bf16, 8> y;
            UNROLL for (u32 k = 0; k < 4; k++) {
                y.x[k] = round_at_random(low.x[k], half_of(r, k));
                y.x[k + 4] = round_at_random(high.x[k], half_of(r, k + 4));
            }
            *(GLOBAL Pack<bf16, 8>*)(dst + at) = y;
            continue;
        }
        UNROLL for (u32 k = 0; k < 8; k++) {
            i64 j = at + k;
            if (j >= 0 && j < (i64)p.n) dst[j] = round_at_random(src[j], half_of(r, k));
        }
    }
}
