// Rounding at random, by 16 bits of a Philox block.
#pragma once
#include "elements.h"

// half_of returns a 16-bit half of a block, the lower one of a word first.
DEVICE u32 half_of(PRIVATE const Words4& r, u32 i) { return r.word[i / 2] >> 16 * (i % 2) & 0xffffu; }

// round_at_random returns x or the neighbour that is farther from 0, which it
// returns with the probability of what is cut off, see internal/half.
DEVICE bf16 round_to(bf16, float x, u32 draw) {
    if (is_nan(x)) return narrow<bf16>(x);
    return bf16{(u16)((float_bits(x) + draw) >> 16)};
}

DEVICE f16 round_to(f16, float x, u32 draw) {
    if (is_nan(x)) return narrow<f16>(x);
    u32 b = float_bits(x), exponent = b >> 23 & 0xffu, up = exponent > 113 ? exponent : 113, down = up - exponent;
    u32 significand = down < 32 ? ((b & 0x7fffffu) | 0x800000u) << 3 >> down : 0;
    u32 h = ((up - 113) << 10) + ((significand + draw) >> 16);
    return f16{(u16)((b >> 16 & 0x8000u) | least(h, 0x7c00u))};
}

template <class T> DEVICE T round_at_random(float x, u32 draw) { return round_to(T(), x, draw); }

// load_eight loads 8 elements from a multiple of 16 bytes.
template <class T> DEVICE void load_eight(PRIVATE T* x, GLOBAL const T* from) {
    const u32 per = 16 / sizeof(T);
    UNROLL for (u32 j = 0; j < 8; j += per) {
        Pack<T, per> y = load_pack<per>(from + j);
        UNROLL for (u32 k = 0; k < per; k++) x[j + k] = y.x[k];
    }
}
