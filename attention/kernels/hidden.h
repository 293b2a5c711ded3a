// What a mask hides from some rows of a tile but not from all. Matrix units
// multiply it by weights of 0, which makes NaN of what is not finite. So after a
// launch on matrix units kernels that mend compute again, as those of tiles.h, the tiles
// of which that is so; the others they leave. A tile of results without a NaN is right. Only
// where there is one the operands are read, for a NaN may also be what the result is.
#pragma once
#include "tiles.h"

// MENDED is the tiles of results that a block looks at at once, as in gpu.go: few blocks of
// these kernels fit a processor at a time.
enum : u32 { MENDED = 8 };

// nan_word says whether one of the two elements of a word is NaN.
DEVICE bool nan_word(u32 word, u32 infinity) { return (word & 0x7fffu) > infinity || (word >> 16 & 0x7fffu) > infinity; }
DEVICE bool nan_word(u32 word, f16) { return nan_word(word, 0x7c00u); }
DEVICE bool nan_word(u32 word, bf16) { return nan_word(word, 0x7f80u); }

// has_nan says whether the thread's part of a tile has a NaN, in at most WIDTH columns from
// `from` on. Rows are in 16 bytes, as matrix units need them.
template <class T> DEVICE bool has_nan(Thread t, Rows<const T> x, u32 from) {
    enum : u32 { PER = 8, LOADS = TILE * WIDTH / PER / THREADS };
    u32 columns = x.dim > from ? least(x.dim - from, (u32)WIDTH) : 0, shift = columns > WIDTH / 2 ? 4 : 3;
    u32 column = (t.local & ((1u << shift) - 1)) * PER, row = t.local >> shift;
    Wide16 y[LOADS];
    UNROLL for (u32 i = 0; i < LOADS; i++) {
        u32 at = row + i * ((u32)THREADS >> shift);
        y[i] = Wide16{{0, 0, 0, 0}};
        if (at < x.n && column < columns) y[i] = *(GLOBAL const Wide16*)(x.at + at * x.stride + from + column);
    }
    bool nan = false;
    UNROLL for (u32 i = 0; i < LOADS; i++)
        UNROLL for (u32 w = 0; w < 4; w++) nan = nan || nan_word(y[i].word[w], T{0});
    return nan;
}

// any_thread says to all threads whether it is so for one.
DEVICE bool any_thread(Thread t, GROUP Quad* room, bool so) {
    sync_threads(); // room is free
    return block_max(t, so ? 1 : 0, (GROUP f32*)room) != 0;
}

// nan_queries says to all threads whether some of n tiles of results of queries, from number
// `item` on, have a NaN.
template <class T>
DEVICE bool nan_queries(Thread t, GROUP Quad* room, Shape p, u64 item, u32 n, GLOBAL const T* x, Strides s, u32 from, u32 dim) {
    bool nan = false;
    UNROLL for (u32 i = 0; i < MENDED; i++) {
        if (i >= n || item + i >= p.items) continue;
        Item at = query_item(p, item + i, TILE);
        nan = has_nan(t, rows_of(x, s, at.b, at.h, at.first, p.seq_q, TILE, dim), from) || nan;
    }
    return any_thread(t, room, nan);
}

// nan_keys says so of tiles of results of keys.
template <class T>
DEVICE bool nan_keys(Thread t, GROUP Quad* room, Shape p, u64 item, u32 n, GLOBAL const T* dk, GLOBAL const T* dv, u32 from) {
    bool nan = false;
    UNROLL_1 for (u32 i = 0; i < MENDED; i++) {
        if (i >= n || item + i >= p.items) continue;
        Item at = key_item(p, item + i, TILE);
        nan = has_nan(t, rows_of(dk, p.k, at.b, at.h, at.first, p.seq_k, TILE, p.dim), from) || nan;
        nan = has_nan(t, rows_of(dv, p.v, at.b, at.h, at.first, p.seq_k, TILE, p.dim_v), from) || nan;
    }
    return any_thread(t, room, nan);
}

// all_finite says to all threads whether rows have neither NaN nor infinity.
template <class T> DEVICE bool all_finite(Thread t, GROUP Quad* room, Rows<const T> x) {
    bool finite = true;
    for (u32 i = t.local; i < x.n * x.dim; i += t.threads)
        finite = finite && is_finite(widen(x.at[i / x.dim * x.stride + i % x.dim]));
    return !any_thread(t, room, !finite);
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
