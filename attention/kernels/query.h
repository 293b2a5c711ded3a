// Queries in the backward pass.
#pragma once
#include "logarithm.h"

// Query is what a query's weights are computed from.
struct Query { f32 lse2, delta; };

// query_of returns query number i of the n from lse and delta on; others see
// nothing.
DEVICE Query query_of(GLOBAL const f32* lse, GLOBAL const f32* delta, u32 i, u32 n) {
    if (i >= n) return Query{infinity(), 0};
    return Query{log2_of(lse[i]), delta[i]};
}
