// The nearest codes.
#pragma once
#include "team.h"

// A tree holds for every code but the last the key of the largest float that
// has it, as a binary search tree by levels: the root at 1, the children of k at
// 2k and 2k+1. Keys are integers in the order of the floats.
enum { TREE = 256 };

DEVICE i32 key_of(float x) {
    i32 bits = (i32)float_bits(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}

DEVICE u32 code_of(GROUP const i32* tree, float x) {
    i32 key = key_of(x);
    u32 k = 1;
    UNROLL for (u32 level = 0; level < 8; level++) k = 2 * k + (key > tree[k]);
    return k - TREE;
}

// encode writes the codes of a block of which this thread has x. Where absmax
// is 0 or NaN they are that of 0.
DEVICE void encode(Team team, GLOBAL u8* codes, PRIVATE const float* x, float absmax, GROUP const i32* tree) {
    bool none = absmax == 0 || is_nan(absmax);
    UNROLL for (u32 j = 0; j < QUADS; j++) {
        Pack<u8, 4> c;
        UNROLL for (u32 k = 0; k < 4; k++)
            c.x[k] = (u8)code_of(tree, none ? 0.0f : (x[4 * j + k] + 0.0f) / absmax); // the quotient of -0 is 0
        store(team, codes, j, c);
    }
}
