// Rounding at random, by 16 bits of a Philox block.
#pragma once

// half_of returns a 16-bit half of a block, the lower one of a word first.
DEVICE u32 half_of(PRIVATE const Words4& r, u32 i) { return r.word[i / 2] >> 16 * (i % 2) & 0xffffu; }

// round_at_random returns x or a neighbour: away from 0 with the probability of
// what bf16 cuts off.
DEVICE bf16 round_at_random(float x, u32 draw) {
    if (is_nan(x)) return narrow<bf16>(x);
    return bf16{(u16)((float_bits(x) + draw) >> 16)};
}
