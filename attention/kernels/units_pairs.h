// The gradients of queries where the registers of a unit do not hold the fragments of
// two operands: pairs of units share 16 queries.
#pragma once
#include "units_backward.h"

// UnitQueries is the lane's two rows, queries, and how many of the keys they see.
struct UnitQueries {
    Query of[2];
    u32 sees[2];
};

// pair_weights turns products into weights and shows them to the other unit.
template <u32 N>
DEVICE void pair_weights(Thread t, PRIVATE Acc* s, GROUP Quad* shown, UnitQueries queries, float scale2) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 j = 0; j < N / 8; j++) {
        Quad w;
        UNROLL for (u32 e = 0; e < 4; e++)
            w.x[e] = 8 * j + column + e % 2 < queries.sees[e / 2] ? quick_exp2(s[j].x[e] * scale2 - queries.of[e / 2].lse2) : 0;
        shown[j * MATRIX_LANES] = w;
    }
}

// pair_grads turns products of gradients into the gradients of scores, but for the
// factor scale, and shows them in place of the weights.
template <u32 N>
DEVICE void pair_grads(Thread t, PRIVATE Acc* ds, GROUP Quad* shown, UnitQueries queries) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 j = 0; j < N / 8; j++) {
        Quad w = shown[j * MATRIX_LANES];
        UNROLL for (u32 e = 0; e < 4; e++) {
            bool sees = 8 * j + column + e % 2 < queries.sees[e / 2];
            ds[j].x[e] = sees ? (ds[j].x[e] - queries.of[e / 2].delta) * w.x[e] : 0;
        }
        shown[j * MATRIX_LANES] = Quad{{ds[j].x[0], ds[j].x[1], ds[j].x[2], ds[j].x[3]}};
    }
}

// pair_backward_query computes dq of one tile of 64 queries over tiles of N keys, as
// unit_backward_query. Of two units one computes the weights of 16 queries and the left
// half of their dq, the other the gradients of their scores and the right half.
template <class T, u32 D, u32 N>
DEVICE void pair_backward_query(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL T* dq, Operands<T> x) {
    Rows<const T> queries = rows_of(x.q, p.q, at.b, at.h, at.first, p.seq_q, HALF_ROWS, p.dim);
    Rows<const T> douts = rows_of(x.dout, p.out, at.b, at.h, at.first, p.seq_q, HALF_ROWS, p.dim_v);
    i64 end = visible(p, at.first + queries.n - 1);
    u64 kv = at.h / p.group;
    u32 unit = unit_of(t) % HALF_UNITS, row = unit * UNIT_ROWS + acc_row(matrix_lane(t), 0);
    bool grads = unit_of(t) >= HALF_UNITS;
    u32 from = grads ? D / 2 : 0;
    GROUP Quad* shown = (GROUP Quad*)room + unit * (N / 8) * MATRIX_LANES + matrix_lane(t);
    GROUP T* keys = (GROUP T*)(room + HALF_UNITS * (N / 8) * MATRIX_LANES);
    GROUP T *next = keys + N * Pitch<D>::value, *values = next + N * Pitch<D>::value;
    FragA<T> a[D / 16];
    load_halves<D>(t, a, (GROUP T*)room, queries, douts);
    Acc sums[D / 16];
    clear<D / 16>(sums);
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
        u32 n = (u32)least(end - k0, (i64)N);
        UnitQueries rows = {{query0, query1}, {within(sees0 - k0, n), within(sees1 - k0, n)}};
        copy_async_wait<0>();
        sync_threads(); // keys and values are there, and the keys before are done with
        if (more) copy_rows<D, N>(t, next, rows_of(x.k, p.k, at.b, kv, k0 + N, end, N, p.dim));
        copy_async_commit();
        Acc s[N / 8];
        clear<N / 8>(s);
        unit_products<D, N>(s, a, (GROUP const T*)(grads ? values : keys));
        if (!grads) pair_weights<N>(t, s, shown, rows, p.scale2);
        sync_threads(); // weights are there, and the values are done with
        if (more) copy_rows<D, N>(t, values, rows_of(x.v, p.v, at.b, kv, k0 + N, end, N, p.dim_v));
        copy_async_commit();
        if (grads) pair_grads<N>(t, s, shown, rows);
        sync_threads(); // the gradients are there
        UNROLL for (u32 j = 0; j < N / 8; j++) {
            Quad ds = shown[j * MATRIX_LANES];
            s[j] = Acc{{ds.x[0], ds.x[1], ds.x[2], ds.x[3]}};
        }
        unit_add<D / 2, N, D>(sums, s, (GROUP const T*)keys + from);
        GROUP T* swap = keys;
        keys = next, next = swap;
    }
    Rows<T> rows = rows_of(dq, p.q, at.b, at.h, at.first, p.seq_q, HALF_ROWS, p.dim);
    unit_store<D / 2>(t, sums, p.scale, p.scale, columns_from(rows, from), unit * UNIT_ROWS);
}
