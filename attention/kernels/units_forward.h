// The forward pass on matrix units.
#pragma once
#include "split.h"
#include "units.h"

enum { UNIT_QUERIES = 128 }; // a block

// UnitSoftmax is the state of the lane's two rows, as Softmax.
struct UnitSoftmax { float most[2], sum[2]; };

// unit_step turns products into weights and rescales the sums to the new maxima.
// A row sees the first of the keys.
template <u32 D, u32 N>
DEVICE void unit_step(Thread t, PRIVATE UnitSoftmax& state, PRIVATE Acc* s, u32 sees0, u32 sees1, float scale2, PRIVATE Acc* sums) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 e = 0; e < 2; e++) {
        u32 sees = e == 0 ? sees0 : sees1;
        float most = state.most[e];
        UNROLL for (u32 j = 0; j < N / 4; j++) {
            u32 c = 2 * e + j % 2;
            s[j / 2].x[c] = column + j / 2 * 8 + j % 2 < sees ? s[j / 2].x[c] * scale2 : -infinity();
            most = maximum(s[j / 2].x[c], most);
        }
        most = row_max(most);
        float base = most == -infinity() ? 0 : most; // −Inf − −Inf would be NaN
        float rescale = quick_exp2(state.most[e] - base), sum = state.sum[e] * rescale;
        state.most[e] = most;
        UNROLL for (u32 j = 0; j < N / 4; j++) {
            u32 c = 2 * e + j % 2;
            s[j / 2].x[c] = quick_exp2(s[j / 2].x[c] - base);
            sum += s[j / 2].x[c];
        }
        state.sum[e] = sum;
        UNROLL for (u32 j = 0; j < D / 4; j++) sums[j / 2].x[2 * e + j % 2] *= rescale;
    }
}

// unit_finish writes out and lse, as finish.
template <u32 D, class T>
DEVICE void unit_finish(Thread t, PRIVATE UnitSoftmax& state, PRIVATE Acc* sums, Rows<T> out, GLOBAL f32* lse) {
    u32 first = unit_of(t) * UNIT_ROWS, lane = matrix_lane(t);
    float factor[2];
    UNROLL for (u32 e = 0; e < 2; e++) {
        float sum = row_sum(state.sum[e]);
        factor[e] = 1 / sum;
        if (sum == 0) {
            factor[e] = 0;
            UNROLL for (u32 j = 0; j < D / 4; j++) sums[j / 2].x[2 * e + j % 2] = 0;
        }
        u32 row = first + acc_row(lane, e);
        if (lse && acc_col(lane) == 0 && row < out.n) lse[row] = log_sum(state.most[e], sum);
    }
    unit_store<D>(t, sums, factor[0], factor[1], out, first);
}

// next_stage waits for what is copied to block memory and begins to copy the next piece,
// if it is one, over the one before, with which all are done.
template <u32 W, u32 N, class T> DEVICE void next_stage(Thread t, GROUP T* to, Rows<const T> next, bool more) {
    copy_async_wait<0>();
    sync_threads();
    if (more) copy_rows<W, N>(t, to, next);
    copy_async_commit();
}

// unit_sums leaves in sums and state what the queries of one tile see of some keys, over tiles
// of N of them. A step has stages: of the keys a piece of columns each, one or two, then of the
// values. While the piece of one is multiplied, that of the next arrives.
template <class T, u32 D, u32 N>
DEVICE void unit_sums(Thread t, GROUP Wide16* room, Shape p, Item at, Keys of, GLOBAL const T* q, GLOBAL const T* k, GLOBAL const T* v,
                      PRIVATE UnitSoftmax& state, PRIVATE Acc* sums) {
    enum { W = Piece<D>::value, PIECES = D / W, LAST = PIECES - 1 };
    Rows<const T> queries = rows_of(q, p.q, at.b, at.h, at.first, p.seq_q, UNIT_QUERIES, p.dim);
    i64 end = of.end;
    u64 kv = at.h / p.group;
    GROUP T *even = (GROUP T*)room, *odd = even + N * Pitch<W>::value; // pieces, by number of the stage
    FragA<T> a[D / 16];
    load_halves<D>(t, a, even, queries, rows_from(queries, HALF_ROWS));
    state = UnitSoftmax{{-infinity(), -infinity()}, {0, 0}};
    clear<D / 8>(sums);
    i64 row = at.first + unit_of(t) * UNIT_ROWS + acc_row(matrix_lane(t), 0);
    i64 sees0 = visible(p, row), sees1 = visible(p, row + 8);

    if (end > of.begin) copy_rows<W, N>(t, even, rows_of(k, p.k, at.b, kv, of.begin, end, N, p.dim));
    copy_async_commit();
    for (i64 k0 = of.begin; k0 < end; k0 += N) {
        Acc s[N / 8];
        clear<N / 8>(s);
        Rows<const T> keys = rows_of(k, p.k, at.b, kv, k0, end, N, p.dim), values = rows_of(v, p.v, at.b, kv, k0, end, N, p.dim_v);
        bool more = k0 + N < end;
        Rows<const T> next = more ? rows_of(k, p.k, at.b, kv, k0 + N, end, N, p.dim) : keys;
        next_stage<W, N>(t, odd, PIECES > 1 ? columns_from(keys, W) : values, true);
        unit_products<W, N>(s, a, (GROUP const T*)even);
        if (PIECES > 1) {
            next_stage<W, N>(t, even, values, true);
            unit_products<W, N>(s, a + LAST * (W / 16), (GROUP const T*)odd);
        }
        u32 n = (u32)least(end - k0, (i64)N);
        unit_step<D, N>(t, state, s, within(sees0 - k0, n), within(sees1 - k0, n), p.scale2, sums);
        if (PIECES > 1) {
            next_stage<W, N>(t, odd, columns_from(values, W), true);
            unit_add<W, N, W>(sums, s, (GROUP const T*)even);
        }
        next_stage<W, N>(t, even, next, more);
        unit_add<W, N, W>(sums + LAST * (W / 8), s, (GROUP const T*)odd);
    }
}

// unit_forward computes one tile of queries over tiles of N keys.
template <class T, u32 D, u32 N>
DEVICE void unit_forward(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL T* out, GLOBAL f32* lse, GLOBAL const T* q,
                         GLOBAL const T* k, GLOBAL const T* v) {
    UnitSoftmax state;
    Acc sums[D / 8];
    unit_sums<T, D, N>(t, room, p, at, keys_of(p, at, UNIT_QUERIES), q, k, v, state, sums);
    GLOBAL f32* rows = p.want_lse ? lse + row_number(p, at.b, at.h, at.first) : nullptr;
    unit_finish<D>(t, state, sums, rows_of(out, p.out, at.b, at.h, at.first, p.seq_q, UNIT_QUERIES, p.dim_v), rows);
}

// unit_split leaves what one tile of queries sees of split number n of its keys.
template <class T, u32 D, u32 N>
DEVICE void unit_split(Thread t, GROUP Wide16* room, Split of, Item at, u32 n, GLOBAL f32* left, GLOBAL f32* states, GLOBAL const T* q,
                       GLOBAL const T* k, GLOBAL const T* v) {
    Shape p = of.shape;
    UnitSoftmax state;
    Acc sums[D / 8];
    u64 number = n * p.rows + row_number(p, at.b, at.h, at.first);
    u32 rows = (u32)least(p.seq_q - at.first, (i64)UNIT_QUERIES);
    unit_sums<T, D, N>(t, room, p, at, split_of(keys_of(p, at, UNIT_QUERIES), of.splits, n, N), q, k, v, state, sums);
    u32 first = unit_of(t) * UNIT_ROWS, lane = matrix_lane(t);
    Rows<f32> to = left_rows(left, number, rows, p.dim_v);
    UNROLL for (u32 e = 0; e < 2; e++) {
        float sum = row_sum(state.sum[e]);
        u32 row = first + acc_row(lane, e);
        if (row >= to.n) continue;
        if (acc_col(lane) == 0) states[2 * (number + row)] = state.most[e], states[2 * (number + row) + 1] = sum;
        GLOBAL f32* x = to.at + row * to.stride + acc_col(lane);
        UNROLL for (u32 j = 0; j < D / 8; j++)
            if (8 * j < to.dim) x[8 * j] = sums[j].x[2 * e], x[8 * j + 1] = sums[j].x[2 * e + 1];
    }
}
