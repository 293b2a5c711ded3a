// The forward pass: online softmax over tiles of keys.
#pragma once
#include "hidden.h"
#include "logarithm.h"

// Softmax is the state of a thread's rows: the greatest score so far, in units of
// log 2, and the thread's part of the sum of 2^(score − most).
struct Softmax { f32 most[4], sum[4]; };

DEVICE float half_warp_max(float x) {
    for (u32 d = 8; d > 0; d /= 2) x = maximum(shuffle_xor(x, d), x);
    return x;
}

DEVICE float half_warp_sum(float x) {
    for (u32 d = 8; d > 0; d /= 2) x += shuffle_xor(x, d);
    return x;
}

// step turns products into weights and rescales the sums to the new maxima. NaNs
// are not maxima.
template <class S>
DEVICE void step(Thread t, PRIVATE Softmax& state, PRIVATE Scores& s, S seen, float scale2, PRIVATE Sums& sums) {
    UNROLL for (u32 r = 0; r < 4; r++) {
        float most = state.most[r];
        UNROLL for (u32 c = 0; c < 4; c++) {
            s.x[r][c] *= scale2;
            if (has(seen.row[r], column_at(t) + 16 * c)) most = maximum(s.x[r][c], most);
        }
        most = half_warp_max(most);
        float base = most == -infinity() ? 0 : most; // −Inf − −Inf would be NaN
        float rescale = exp2_of(state.most[r] - base), sum = state.sum[r] * rescale;
        state.most[r] = most;
        UNROLL for (u32 c = 0; c < 4; c++) {
            s.x[r][c] = has(seen.row[r], column_at(t) + 16 * c) ? exp2_of(s.x[r][c] - base) : 0;
            sum += s.x[r][c];
        }
        state.sum[r] = sum;
        UNROLL for (u32 c = 0; c < 8; c++) sums.x[r][c] *= rescale;
    }
}

// finish writes out and lse. A row that saw nothing, or only scores of −Inf, is 0.
template <class X>
DEVICE void finish(Thread t, PRIVATE Softmax& state, PRIVATE Sums& sums, X out, u32 from, GLOBAL f32* lse) {
    Quad factor;
    UNROLL for (u32 r = 0; r < 4; r++) {
        float sum = half_warp_sum(state.sum[r]);
        factor.x[r] = 1 / sum;
        if (sum == 0) {
            factor.x[r] = 0;
            UNROLL for (u32 c = 0; c < 8; c++) sums.x[r][c] = 0;
        }
        if (lse && column_at(t) == 0 && row_at(t) + r < out.n) lse[row_at(t) + r] = log_sum(state.most[r], sum);
    }
    store(t, sums, factor, out, from);
}

// Keys is the keys begin to end-1.
struct Keys { i64 begin, end; };

// keys_of returns the keys that any query of a tile sees.
DEVICE Keys keys_of(Shape p, Item at, u32 tile) { return Keys{0, visible(p, least(at.first + tile, p.seq_q) - 1)}; }

// forward_sums leaves in state and sums what one tile of queries sees of some keys, in columns
// from `from` on.
template <class T>
DEVICE void forward_sums(Thread t, GROUP Quad* room, Shape p, Item q0, Keys of, u32 from, GLOBAL const T* q, GLOBAL const T* k,
                         GLOBAL const T* v, PRIVATE Softmax& state, PRIVATE Sums& sums) {
    Rows<const T> queries = rows_of(q, p.q, q0.b, q0.h, q0.first, p.seq_q, TILE, p.dim);
    clear(sums);
    UNROLL for (u32 r = 0; r < 4; r++) state.most[r] = -infinity(), state.sum[r] = 0;
    i64 end = of.end;
    for (i64 k0 = of.begin; k0 < end; k0 += TILE) {
        Rows<const T> keys = rows_of(k, p.k, q0.b, q0.h / p.group, k0, end, TILE, p.dim);
        Rows<const T> values = rows_of(v, p.v, q0.b, q0.h / p.group, k0, end, TILE, p.dim_v);
        Seen seen;
        UNROLL for (u32 r = 0; r < 4; r++) seen.row[r] = Range{0, within(visible(p, q0.first + row_at(t) + r) - k0, keys.n)};
        Scores s;
        products(t, s, room, queries, keys);
        step(t, state, s, seen, p.scale2, sums);
        add(t, sums, room, s, seen, values, from);
    }
}

// forward computes columns from `from` on of one tile of queries.
template <class T>
DEVICE void forward(Thread t, GROUP Quad* room, Shape p, Item q0, u32 from, GLOBAL T* out, GLOBAL f32* lse, GLOBAL const T* q,
                    GLOBAL const T* k, GLOBAL const T* v) {
    Softmax state;
    Sums sums;
    forward_sums<T>(t, room, p, q0, keys_of(p, q0, TILE), from, q, k, v, state, sums);
    GLOBAL f32* rows = p.want_lse && from == 0 ? lse + row_number(p, q0.b, q0.h, q0.first) : nullptr;
    finish(t, state, sums, rows_of(out, p.out, q0.b, q0.h, q0.first, p.seq_q, TILE, p.dim_v), from, rows);
}

#define FORWARD(T)                                                                                                     \
    KERNEL(attention_forward_##T, 256, OPERAND(T, out, 0), OPERAND(f32, lse, 1), OPERAND(const T, q, 2),               \
           OPERAND(const T, k, 3), OPERAND(const T, v, 4), PARAMS(Shape, p)) {                                         \
        SHARED(Quad, room, ROOM);                                                                                      \
        Thread t = THREAD;                                                                                             \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            forward<T>(t, room, p, query_item(p, item, TILE), t.block_y * WIDTH, out, lse, q, k, v);                   \
    }
FOR_FLOATS(FORWARD)

#define MEND_FORWARD(T)                                                                                                \
    KERNEL(attention_mend_forward_##T, 256, OPERAND(T, out, 0), OPERAND(f32, lse, 1), OPERAND(const T, q, 2),          \
           OPERAND(const T, k, 3), OPERAND(const T, v, 4), PARAMS(Shape, p)) {                                         \
        SHARED(Quad, room, ROOM);                                                                                      \
        Thread t = THREAD;                                                                                             \
        u32 from = t.block_y * WIDTH;                                                                                  \
        for (u64 item = t.block * MENDED; item < p.items; item += t.blocks * MENDED) {                                 \
            if (!nan_queries<T>(t, room, p, item, MENDED, out, p.out, from, p.dim_v)) continue;                        \
            for (u64 i = item; i < item + MENDED && i < p.items; i++) {                                                \
                Item at = query_item(p, i, TILE);                                                                      \
                if (nan_queries<T>(t, room, p, i, 1, out, p.out, from, p.dim_v) &&                                     \
                    !intact_queries(t, room, p, at, v, p.v, p.dim_v))                                                  \
                    forward<T>(t, room, p, at, from, out, lse, q, k, v);                                               \
            }                                                                                                          \
        }                                                                                                              \
    }
#if defined(HAS_F16_UNITS)
MEND_FORWARD(f16)
MEND_FORWARD(bf16)
#endif
