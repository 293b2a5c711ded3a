// The backward pass: weights are computed again from lse.
#pragma once
#include "hidden.h"
#include "query.h"

// ---- delta_i = dout_i · out_i, a row a warp.

template <class T>
DEVICE void delta_rows(Thread t, GLOBAL f32* delta, GLOBAL const T* out, GLOBAL const T* dout, Shape p) {
    u64 warps = t.threads / WARP;
    for (u64 row = t.block * warps + warp_of(t); row < p.rows; row += t.blocks * warps) {
        u64 head = row / (u64)p.seq_q;
        u64 at = head / p.heads * p.out.batch + head % p.heads * p.out.head + row % (u64)p.seq_q * p.out.row;
        float sum = 0;
        for (u32 d = lane_of(t); d < p.dim_v; d += WARP) sum = fused_mul_add(widen(dout[at + d]), widen(out[at + d]), sum);
        sum = warp_sum(sum);
        if (lane_of(t) == 0) delta[row] = sum;
    }
}

#define DELTA(T)                                                                                                       \
    KERNEL(attention_delta_##T, 256, OPERAND(f32, delta, 0), OPERAND(const T, out, 1), OPERAND(const T, dout, 2),      \
           PARAMS(Shape, p)) {                                                                                         \
        Thread t = THREAD;                                                                                             \
        delta_rows<T>(t, delta, out, dout, p);                                                                         \
    }
FOR_FLOATS(DELTA)

// ---- weights and their gradients

DEVICE float weight(float product, Query q, float scale2) { return exp2_of(product * scale2 - q.lse2); }
DEVICE float score_grad(float dp, float p, Query q, float scale) { return (dp - q.delta) * p * scale; }

// Operands are the tensors that both passes read.
template <class T> struct Operands {
    GLOBAL const T *dout, *q, *k, *v;
    GLOBAL const f32 *lse, *delta;
};

// backward_query computes columns from `from` on of dq for one tile of queries.
template <class T>
DEVICE void backward_query(Thread t, GROUP Quad* room, Shape p, Item q0, u32 from, GLOBAL T* dq, Operands<T> x) {
    Rows<const T> queries = rows_of(x.q, p.q, q0.b, q0.h, q0.first, p.seq_q, TILE, p.dim);
    Rows<const T> douts = rows_of(x.dout, p.out, q0.b, q0.h, q0.first, p.seq_q, TILE, p.dim_v);
    u64 row = row_number(p, q0.b, q0.h, q0.first);
    Query query[4];
    UNROLL for (u32 r = 0; r < 4; r++) query[r] = query_of(x.lse + row, x.delta + row, row_at(t) + r, queries.n);
    Sums sums;
    clear(sums);
    i64 end = visible(p, q0.first + queries.n - 1);
    for (i64 k0 = 0; k0 < end; k0 += TILE) {
        Rows<const T> keys = rows_of(x.k, p.k, q0.b, q0.h / p.group, k0, end, TILE, p.dim);
        Rows<const T> values = rows_of(x.v, p.v, q0.b, q0.h / p.group, k0, end, TILE, p.dim_v);
        Scores s, ds;
        products(t, s, room, queries, keys);
        products(t, ds, room, douts, values);
        Seen seen;
        UNROLL for (u32 r = 0; r < 4; r++) {
            seen.row[r] = Range{0, within(visible(p, q0.first + row_at(t) + r) - k0, keys.n)};
            UNROLL for (u32 c = 0; c < 4; c++) {
                float w = weight(s.x[r][c], query[r], p.scale2);
                ds.x[r][c] = has(seen.row[r], column_at(t) + 16 * c) ? score_grad(ds.x[r][c], w, query[r], p.scale) : 0;
            }
        }
        add(t, sums, room, ds, seen, keys, from);
    }
    store(t, sums, Quad{{1, 1, 1, 1}}, rows_of(dq, p.q, q0.b, q0.h, q0.first, p.seq_q, TILE, p.dim), from);
}

#define BACKWARD_QUERY(T)                                                                                              \
    KERNEL(attention_backward_query_##T, 256, OPERAND(T, dq, 0), OPERAND(const T, dout, 1), OPERAND(const T, q, 2),    \
           OPERAND(const T, k, 3), OPERAND(const T, v, 4), OPERAND(const f32, lse, 5), OPERAND(const f32, delta, 6),   \
           PARAMS(Shape, p)) {                                                                                         \
        SHARED(Quad, room, ROOM);                                                                                      \
        Thread t = THREAD;                                                                                             \
        Operands<T> x = {dout, q, k, v, lse, delta};                                                                   \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            backward_query<T>(t, room, p, query_item(p, item, TILE), t.block_y * WIDTH, dq, x);                        \
    }
FOR_FLOATS(BACKWARD_QUERY)

#define MEND_BACKWARD_QUERY(T)                                                                                         \
    KERNEL(attention_mend_backward_query_##T, 256, OPERAND(T, dq, 0), OPERAND(const T, dout, 1), OPERAND(const T, q, 2), \
           OPERAND(const T, k, 3), OPERAND(const T, v, 4), OPERAND(const f32, lse, 5), OPERAND(const f32, delta, 6),   \
           PARAMS(Shape, p)) {                                                                                         \
        SHARED(Quad, room, ROOM);                                                                                      \
        Thread t = THREAD;                                                                                             \
        Operands<T> x = {dout, q, k, v, lse, delta};                                                                   \
        u32 from = t.block_y * WIDTH;                                                                                  \
        for (u64 item = t.block * MENDED; item < p.items; item += t.blocks * MENDED) {                                 \
            if (!nan_queries<T>(t, room, p, item, MENDED, dq, p.q, from, p.dim)) continue;                             \
            for (u64 i = item; i < item + MENDED && i < p.items; i++) {                                                \
                Item at = query_item(p, i, TILE);                                                                      \
                if (nan_queries<T>(t, room, p, i, 1, dq, p.q, from, p.dim) &&                                          \
                    !intact_queries(t, room, p, at, k, p.k, p.dim))                                                    \
                    backward_query<T>(t, room, p, at, from, dq, x);                                                    \
            }                                                                                                          \
        }                                                                                                              \
    }
#if defined(HAS_F16_UNITS)
MEND_BACKWARD_QUERY(f16)
MEND_BACKWARD_QUERY(bf16)
#endif

// backward_key computes columns from `from` on of dk and dv for one tile of keys.
// Rows of its scores are keys, columns queries.
template <class T>
DEVICE void backward_key(Thread t, GROUP Quad* room, Shape p, Item k0, u32 from, GLOBAL T* dk, GLOBAL T* dv, Operands<T> x) {
    Rows<const T> keys = rows_of(x.k, p.k, k0.b, k0.h, k0.first, p.seq_k, TILE, p.dim);
    Rows<const T> values = rows_of(x.v, p.v, k0.b, k0.h, k0.first, p.seq_k, TILE, p.dim_v);
    Sums sum_k, sum_v;
    clear(sum_k);
    clear(sum_v);
    i64 first = first_query(p, k0.first) / TILE * TILE;
    for (u64 h = k0.h * p.group; h < (k0.h + 1) * p.group; h++)
        for (i64 q0 = first; q0 < p.seq_q; q0 += TILE) {
            Rows<const T> queries = rows_of(x.q, p.q, k0.b, h, q0, p.seq_q, TILE, p.dim);
            Rows<const T> douts = rows_of(x.dout, p.out, k0.b, h, q0, p.seq_q, TILE, p.dim_v);
            Seen seen;
            UNROLL for (u32 r = 0; r < 4; r++)
                seen.row[r] = Range{within(first_query(p, k0.first + row_at(t) + r) - q0, queries.n), queries.n};
            Scores s, ds;
            products(t, s, room, keys, queries);
            products(t, ds, room, values, douts);
            u64 row = row_number(p, k0.b, h, q0);
            UNROLL for (u32 c = 0; c < 4; c++) {
                u32 column = column_at(t) + 16 * c;
                Query query = query_of(x.lse + row, x.delta + row, column, queries.n);
                UNROLL for (u32 r = 0; r < 4; r++) {
                    bool sees = has(seen.row[r], column);
                    float w = sees ? weight(s.x[r][c], query, p.scale2) : 0;
                    ds.x[r][c] = sees ? score_grad(ds.x[r][c], w, query, p.scale) : 0;
                    s.x[r][c] = w;
                }
            }
            if (from < p.dim_v) add(t, sum_v, room, s, seen, douts, from);
            if (from < p.dim) add(t, sum_k, room, ds, seen, queries, from);
        }
    Quad ones = {{1, 1, 1, 1}};
    store(t, sum_k, ones, rows_of(dk, p.k, k0.b, k0.h, k0.first, p.seq_k, TILE, p.dim), from);
    store(t, sum_v, ones, rows_of(dv, p.v, k0.b, k0.h, k0.first, p.seq_k, TILE, p.dim_v), from);
}

#define BACKWARD_KEY(T)                                                                                                \
    KERNEL(attention_backward_key_##T, 256, OPERAND(T, dk, 0), OPERAND(T, dv, 1), OPERAND(const T, dout, 2),           \
           OPERAND(const T, q, 3), OPERAND(const T, k, 4), OPERAND(const T, v, 5), OPERAND(const f32, lse, 6),         \
           OPERAND(const f32, delta, 7), PARAMS(Shape, p)) {                                                           \
        SHARED(Quad, room, ROOM);                                                                                      \
        Thread t = THREAD;                                                                                             \
        Operands<T> x = {dout, q, k, v, lse, delta};                                                                   \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            backward_key<T>(t, room, p, key_item(p, item, TILE), t.block_y * WIDTH, dk, dv, x);                        \
    }
FOR_FLOATS(BACKWARD_KEY)

#define MEND_BACKWARD_KEY(T)                                                                                           \
    KERNEL(attention_mend_backward_key_##T, 256, OPERAND(T, dk, 0), OPERAND(T, dv, 1), OPERAND(const T, dout, 2),      \
           OPERAND(const T, q, 3), OPERAND(const T, k, 4), OPERAND(const T, v, 5), OPERAND(const f32, lse, 6),         \
           OPERAND(const f32, delta, 7), PARAMS(Shape, p)) {                                                           \
        SHARED(Quad, room, ROOM);                                                                                      \
        Thread t = THREAD;                                                                                             \
        Operands<T> x = {dout, q, k, v, lse, delta};                                                                   \
        u32 from = t.block_y * WIDTH;                                                                                  \
        for (u64 item = t.block * MENDED; item < p.items; item += t.blocks * MENDED) {                                 \
            if (!nan_keys<T>(t, room, p, item, MENDED, dk, dv, from)) continue;                                        \
            for (u64 i = item; i < item + MENDED && i < p.items; i++) {                                                \
                Item at = key_item(p, i, TILE);                                                                        \
                if (nan_keys<T>(t, room, p, i, 1, dk, dv, from) && !intact_keys(t, room, p, at, q, dout))              \
                    backward_key<T>(t, room, p, at, from, dk, dv, x);                                                  \
            }                                                                                                          \
        }                                                                                                              \
    }
#if defined(HAS_F16_UNITS)
MEND_BACKWARD_KEY(f16)
MEND_BACKWARD_KEY(bf16)
#endif
