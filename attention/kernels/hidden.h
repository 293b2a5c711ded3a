// What a mask hides from some rows of a tile but not from all. Matrix units
// multiply it by weights of 0, which makes NaN of what is not finite. So after a
// launch on matrix units the kernels of tiles.h compute again the tiles of which
// that is so; the others they leave.
#pragma once
#include "tiles.h"

// all_finite says to all threads whether rows have neither NaN nor infinity.
template <class T> DEVICE bool all_finite(Thread t, GROUP Quad* room, Rows<const T> x) {
    bool finite = true;
    for (u32 i = t.local; i < x.n * x.dim; i += t.threads)
        finite = finite && is_finite(widen(x.at[i / x.dim * x.stride + i % x.dim]));
    sync_threads(); // room is free
    return block_max(t, finite ? 0 : 1, (GROUP f32*)room) == 0;
}

// intact_queries says whether the launch before was right about a tile of queries,
// for which it multiplied rows of x, k or v.
template <class T> DEVICE bool intact_queries(Thread t, GROUP Quad* room, Shape p, Item at, GLOBAL const T* x, Strides s, u32 dim) {
    i64 last = least((at.first / p.mend + 1) * p.mend, p.seq_q) - 1;
    i64 begin = visible(p, at.first), end = visible(p, last);
    return begin >= end || all_finite(t, room, rows_of(x, s, at.b, at.h / p.group, begin, end, p.mend, dim));
}

// intact_keys says so about a tile of keys, for which it multiplied q and dout.
template <class T>
DEVICE bool intact_keys(Thread t, GROUP Quad* room, Shape p, Item at, GLOBAL const T* q, GLOBAL const T* dout) {
    i64 tile = at.first / p.mend_keys * p.mend_keys;
    i64 begin = first_query(p, tile), end = least(first_query(p, least(at.first + TILE, p.seq_k) - 1), p.seq_q);
    for (u64 h = at.h * p.group; begin < end && h < (at.h + 1) * p.group; h++)
        if (!all_finite(t, room, rows_of(q, p.q, at.b, h, begin, end, p.mend_keys, p.dim)) ||
            !all_finite(t, room, rows_of(dout, p.out, at.b, h, begin, end, p.mend_keys, p.dim_v)))
            return false;
    return true;
}
