// The backward pass on matrix units.
#pragma once
#include "backward.h"
#include "units_forward.h"

// unit_grads turns products into weights, and products of gradients into the
// gradients of scores, but for the factor scale. A row sees the first of the keys.
template <u32 N>
DEVICE void unit_grads(Thread t, PRIVATE Acc* ds, PRIVATE const Acc* s, Query query0, Query query1, u32 sees0, u32 sees1, float scale2) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 j = 0; j < N / 8; j++)
        UNROLL for (u32 e = 0; e < 4; e++) {
            Query query = e < 2 ? query0 : query1;
            float w = quick_exp2(s[j].x[e] * scale2 - query.lse2);
            bool sees = 8 * j + column + e % 2 < (e < 2 ? sees0 : sees1);
            ds[j].x[e] = sees ? (ds[j].x[e] - query.delta) * w : 0;
        }
}

// unit_backward_query computes dq of one tile of queries over tiles of N keys, of
// which two are in block memory: the next arrive while these are multiplied.
template <class T, u32 D, u32 N>
DEVICE void unit_backward_query(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL T* dq, Operands<T> x) {
    Rows<const T> queries = rows_of(x.q, p.q, at.b, at.h, at.first, p.seq_q, UNIT_QUERIES, p.dim);
    Rows<const T> douts = rows_of(x.dout, p.out, at.b, at.h, at.first, p.seq_q, UNIT_QUERIES, p.dim_v);
    i64 end = visible(p, at.first + queries.n - 1);
    u64 kv = at.h / p.group;
    GROUP T *keys = (GROUP T*)room, *next = keys + N * Pitch<D>::value, *values = next + N * Pitch<D>::value;
    FragA<T> a[D / 16], da[D / 16];
    load_halves<D>(t, a, keys, queries, rows_from(queries, HALF_ROWS));
    load_halves<D>(t, da, keys, douts, rows_from(douts, HALF_ROWS));
    Acc sums[D / 8];
    clear<D / 8>(sums);
    u32 row = unit_of(t) * UNIT_ROWS + acc_row(matrix_lane(t), 0);
    i64 sees0 = visible(p, at.first + row), sees1 = visible(p, at.first + row + 8);
    u64 number = row_number(p, at.b, at.h, at.first);
    Query query0 = query_of(x.lse + number, x.delta + number, row, queries.n);
    Query query1 = query_of(x.lse + number, x.delta + number, row + 8, queries.n);

    if (end > 0) {
        copy_rows<D, N>(t, keys, rows_of(x.k, p.k, at.b, kv, 0, end, N, p.dim));
        copy_rows<D, N>(t, values, rows_of(x.v, p.v, at.b, kv, 0, end, N, p.dim_v));
    }
    copy_async_commit();
    for (i64 k0 = 0; k0 < end; k0 += N) {
        bool more = k0 + N < end;
        copy_async_wait<0>();
        sync_threads(); // keys and values are there, and the keys before are done with
        if (more) copy_rows<D, N>(t, next, rows_of(x.k, p.k, at.b, kv, k0 + N, end, N, p.dim));
        copy_async_commit();
        Acc s[N / 8], ds[N / 8];
        clear<N / 8>(s);
        clear<N / 8>(ds);
        unit_products<D, N>(s, a, (GROUP const T*)keys);
        unit_products<D, N>(ds, da, (GROUP const T*)values);
        sync_threads(); // the values are done with
        if (more) copy_rows<D, N>(t, values, rows_of(x.v, p.v, at.b, kv, k0 + N, end, N, p.dim_v));
        copy_async_commit();
        u32 n = (u32)least(end - k0, (i64)N);
        unit_grads<N>(t, ds, s, query0, query1, within(sees0 - k0, n), within(sees1 - k0, n), p.scale2);
        unit_add<D, N, D>(sums, ds, (GROUP const T*)keys);
        GROUP T* swap = keys;
        keys = next, next = swap;
    }
    Rows<T> rows = rows_of(dq, p.q, at.b, at.h, at.first, p.seq_q, UNIT_QUERIES, p.dim);
    unit_store<D>(t, sums, p.scale, p.scale, rows, unit_of(t) * UNIT_ROWS);
}

// Walk is the tiles of N queries, of all heads, that see some of a block's keys.
struct Walk {
    u64 h, heads; // the head and the end of the heads
    i64 q0, first, end;
};

DEVICE void advance(PRIVATE Walk& w, i64 n) {
    w.q0 += n;
    if (w.q0 < w.end) return;
    w.q0 = w.first;
    w.h++;
}

// copy_queries begins to copy W columns of a tile of queries, and then of their dout,
// if it is one.
template <u32 W, u32 N, class T>
DEVICE void copy_queries(Thread t, GROUP T* to, Shape p, u64 b, Walk w, u32 from, Operands<T> x) {
    if (w.h < w.heads) {
        copy_rows<W, N>(t, to, columns_from(rows_of(x.q, p.q, b, w.h, w.q0, p.seq_q, N, p.dim), from));
        copy_rows<W, N>(t, to + N * Pitch<W>::value, columns_from(rows_of(x.dout, p.out, b, w.h, w.q0, p.seq_q, N, p.dim_v), from));
    }
    copy_async_commit();
}

// Window is which columns of scores, queries, count for the lane's two rows, keys:
// those from lo0 and lo1 on, below n. The lane's first column is number column.
struct Window { u32 column, lo0, lo1, n; };

// shows says whether element e of tile j of scores counts.
DEVICE bool shows(Window w, u32 j, u32 e) {
    u32 c = 8 * j + w.column + e % 2;
    return c >= (e < 2 ? w.lo0 : w.lo1) && c < w.n;
}

// unit_key_weights turns products into weights and shows them to the other unit.
template <u32 N>
DEVICE void unit_key_weights(PRIVATE Acc* s, GROUP Quad* weights, PRIVATE const float* lse2, Window window, float scale2) {
    UNROLL for (u32 j = 0; j < N / 8; j++) {
        UNROLL for (u32 e = 0; e < 4; e++)
            s[j].x[e] = shows(window, j, e) ? quick_exp2(s[j].x[e] * scale2 - lse2[2 * j + e % 2]) : 0;
        weights[j * MATRIX_LANES] = Quad{{s[j].x[0], s[j].x[1], s[j].x[2], s[j].x[3]}};
    }
}

// unit_key_grads turns products of gradients into the gradients of scores, but for
// the factor scale.
template <u32 N>
DEVICE void unit_key_grads(PRIVATE Acc* ds, GROUP const Quad* weights, PRIVATE const float* delta, Window window) {
    UNROLL for (u32 j = 0; j < N / 8; j++) {
        Quad w = weights[j * MATRIX_LANES];
        UNROLL for (u32 e = 0; e < 4; e++)
            ds[j].x[e] = shows(window, j, e) ? (ds[j].x[e] - delta[2 * j + e % 2]) * w.x[e] : 0;
    }
}

// unit_backward_key computes dk and dv of one tile of 64 keys over tiles of N
// queries. Two units share 16 keys: one computes their weights and dv, the other their
// gradients and dk, for which it needs the weights. Rows of scores are keys, columns
// queries. Block memory is a ring of one more than the pieces of a tile: the first piece
// of the next tile arrives while this tile is multiplied, each other one as soon as one of
// this tile is done with.
template <class T, u32 D, u32 N>
DEVICE void unit_backward_key(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL T* dk, GLOBAL T* dv, Operands<T> x) {
    enum { W = Piece<D>::value, PIECES = D / W, RING = PIECES + 1, PIECE = N * Pitch<W>::value };
    Rows<const T> keys = rows_of(x.k, p.k, at.b, at.h, at.first, p.seq_k, HALF_ROWS, p.dim);
    Rows<const T> values = rows_of(x.v, p.v, at.b, at.h, at.first, p.seq_k, HALF_ROWS, p.dim_v);
    i64 first = first_query(p, at.first);
    Walk walk = {at.h * p.group, (at.h + 1) * p.group, first, first, p.seq_q};
    if (first >= p.seq_q) walk.h = walk.heads;
    GROUP Quad* weights = (GROUP Quad*)room + unit_of(t) % HALF_UNITS * (N / 8) * MATRIX_LANES + matrix_lane(t);
    GROUP T* ring = (GROUP T*)(room + HALF_UNITS * (N / 8) * MATRIX_LANES); // of pieces of queries and of dout
    bool grads = unit_of(t) >= HALF_UNITS;
    FragA<T> a[D / 16];
    load_halves<D>(t, a, (GROUP T*)room, keys, values);
    Acc sums[D / 8];
    clear<D / 8>(sums);
    u32 column = acc_col(matrix_lane(t));
    i64 key = at.first + unit_of(t) % HALF_UNITS * UNIT_ROWS + acc_row(matrix_lane(t), 0);
    i64 from0 = first_query(p, key), from1 = first_query(p, key + 8);

    UNROLL for (u32 i = 0; i < PIECES; i++) copy_queries<W, N>(t, ring + i * 2 * PIECE, p, at.b, walk, i * W, x);
    for (u32 begin = 0; walk.h < walk.heads; begin = (begin + PIECES) % RING) {
        u64 number = row_number(p, at.b, walk.h, walk.q0);
        u32 n = (u32)least(p.seq_q - walk.q0, (i64)N);
        Window window = {column, within(from0 - walk.q0, n), within(from1 - walk.q0, n), n};
        float of_query[N / 4]; // lse in units of log 2, or delta
        UNROLL for (u32 j = 0; j < N / 4; j++) {
            u32 i = least(j / 2 * 8 + column + j % 2, n - 1);
            of_query[j] = grads ? x.delta[number + i] : log2_of(x.lse[number + i]);
        }
        advance(walk, N);
        copy_async_wait<0>();
        sync_threads(); // the tile is there, and the one before is done with
        copy_queries<W, N>(t, ring + (begin + PIECES) % RING * 2 * PIECE, p, at.b, walk, 0, x);
        Acc s[N / 8];
        clear<N / 8>(s);
        UNROLL for (u32 i = 0; i < PIECES; i++) {
            GROUP const T* piece = ring + (begin + i) % RING * 2 * PIECE;
            unit_products<W, N>(s, a + i * (W / 16), grads ? piece + PIECE : piece);
        }
        if (!grads) unit_key_weights<N>(s, weights, of_query, window, p.scale2);
        sync_threads(); // weights are there
        if (grads) unit_key_grads<N>(s, weights, of_query, window);
        UNROLL for (u32 i = 0; i < PIECES; i++) {
            GROUP const T* piece = ring + (begin + i) % RING * 2 * PIECE;
            if (i > 0) {
                sync_threads(); // the piece before is done with
                copy_queries<W, N>(t, ring + (begin + i - 1) % RING * 2 * PIECE, p, at.b, walk, i * W, x);
            }
            unit_add<W, N, W>(sums + i * (W / 8), s, grads ? piece : piece + PIECE);
        }
    }
    Rows<T> rows = grads ? rows_of(dk, p.k, at.b, at.h, at.first, p.seq_k, HALF_ROWS, p.dim)
                         : rows_of(dv, p.v, at.b, at.h, at.first, p.seq_k, HALF_ROWS, p.dim_v);
    float factor = grads ? p.scale : 1;
    unit_store<D>(t, sums, factor, factor, rows, unit_of(t) % HALF_UNITS * UNIT_ROWS);
}
