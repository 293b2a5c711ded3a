// The backward pass of keys on compute capability 9.0. Rows of scores are keys, columns
// queries.
//
// A group holds dk and dv of 64 keys, at most 128 columns of them, which are half of its
// registers. For rows of 256 elements two groups have a half of the columns each, and both
// compute the scores.
#pragma once
#include "hopper_backward_query.h"

// KeyRoom is where things lie in block memory, for ROWS keys and tiles of N queries.
template <u32 D, u32 ROWS, u32 N> struct KeyRoom {
    enum : u32 {
        KEYS = 0,
        VALUES = Tile<D, ROWS>::BYTES,
        QUERIES = 2 * VALUES,
        DOUTS = QUERIES + STAGES * Tile<D, N>::BYTES,
        NUMBERS = DOUTS + STAGES * Tile<D, N>::BYTES, // of a stage: lse of its queries in units of log 2, then delta
        RING = NUMBERS + STAGES * N * 8,
        OWN_FULL = RING + RING_BYTES, // keys and values
    };
};

// Tour is the tiles of N queries of a key head's query heads that see some of a block's
// keys, from the first query that does on.
struct Tour {
    i32 first, end;
    u32 n; // of all heads
};

template <u32 N> DEVICE Tour tour_of(Shape p, Item at) {
    i32 first = (i32)least(first_query(p, at.first), p.seq_q), end = (i32)p.seq_q;
    return Tour{first, end, ((u32)(end - first) + N - 1) / N * (u32)p.group};
}

// next returns the first query of the tile after that from q0 on: the next one of its
// head, or the first one of the next head.
template <u32 N> DEVICE i32 next(Tour tour, i32 q0) { return q0 + (i32)N < tour.end ? q0 + (i32)N : tour.first; }

// key_copies is what the copying warp does. Its first lane begins the copies; all bring
// lse and delta, which sync_warp orders before the first lane's arrival. So a stage
// is full with two arrivals and the bytes of two tiles.
template <u32 D, u32 ROWS, u32 N>
DEVICE void key_copies(Thread t, Shape p, u8* memory, u32 room, Item at, Tour tour, const TensorMap& dout, const TensorMap& q,
                       const TensorMap& k, const TensorMap& v, const f32* lse, const f32* delta) {
    using R = KeyRoom<D, ROWS, N>;
    enum : u32 { BYTES = Tile<D, N>::BYTES };
    u32 lane = t.local % 32, b = (u32)at.b, own = room + R::OWN_FULL;
    if (lane == 0) {
        barrier_expect(own, 2 * Tile<D, ROWS>::BYTES);
        copy_tile<D, ROWS>(room + R::KEYS, k, (i32)at.first, (u32)at.h, b, own);
        copy_tile<D, ROWS>(room + R::VALUES, v, (i32)at.first, (u32)at.h, b, own);
    }
    u32 h = (u32)(at.h * p.group);
    i32 q0 = tour.first;
    UNROLL_1 for (u32 i = 0; i < tour.n; i++) {
        u32 stage = i % STAGES, full = full_of(room + R::RING, i);
        wait_empty(room + R::RING, i);
        if (lane == 0) {
            barrier_expect(full, 2 * BYTES);
            copy_tile<D, N>(room + R::QUERIES + stage * BYTES, q, q0, h, b, full);
            copy_tile<D, N>(room + R::DOUTS + stage * BYTES, dout, q0, h, b, full);
        }
        u64 number = row_number(p, at.b, h, q0);
        u32 n = (u32)least(p.seq_q - q0, (i64)N);
        float* to = (float*)(memory + R::NUMBERS) + stage * 2 * N;
        for (u32 c = lane; c < N; c += 32) {
            Query query = query_of(lse + number, delta + number, c, n);
            to[c] = query.lse2, to[N + c] = query.delta;
        }
        sync_warp();
        if (lane == 0) barrier_arrive(full);
        q0 = next<N>(tour, q0);
        h += q0 == tour.first;
    }
}

// Viewer is the first queries that see the lane's two rows, and that which sees all rows
// of its group.
struct Viewer { i32 from[2], all, end; };

DEVICE Viewer viewer_of(Thread t, Shape p, i64 first) {
    i64 row = first + row_in_group(t);
    i64 from[3] = {first_query(p, row), first_query(p, row + 8), first_query(p, first + GROUP_ROWS - 1)};
    UNROLL for (u32 i = 0; i < 3; i++) from[i] = least(from[i], p.seq_q);
    return Viewer{{(i32)from[0], (i32)from[1]}, (i32)from[2], (i32)p.seq_q};
}

// seen_by_all says whether all queries of a tile from q0 on are there and see all rows
// of the group.
template <u32 N> DEVICE bool seen_by_all(Viewer v, i32 q0) { return q0 >= v.all && q0 + (i32)N <= v.end; }

DEVICE Span span_of(Viewer v, i32 q0) { return Span{{v.from[0] - q0, v.from[1] - q0}, {v.end - q0, v.end - q0}}; }

// Two are the numbers of the lane's neighbouring columns.
struct alignas(8) Two { float x[2]; };

// key_weights turns products into weights.
template <u32 N, bool HIDES>
DEVICE void key_weights(Thread t, float (&s)[N / 2], const float* lse2, Span span, float scale2) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 j = 0; j < N / 8; j++) {
        Two base = *(const Two*)(lse2 + 8 * j + column);
        UNROLL for (u32 i = 4 * j; i < 4 * j + 4; i++) {
            float w = quick_exp2(fused_mul_add(s[i], scale2, -base.x[i % 2]));
            s[i] = !HIDES || counts(span, i / 2 % 2, 8 * j + column + i % 2) ? w : 0;
        }
    }
}

// key_grads turns products of dout into the gradients of scores, but for the factor scale.
template <u32 N, bool HIDES>
DEVICE void key_grads(Thread t, float (&ds)[N / 2], const float (&w)[N / 2], const float* delta, Span span) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 j = 0; j < N / 8; j++) {
        Two less = *(const Two*)(delta + 8 * j + column);
        UNROLL for (u32 i = 4 * j; i < 4 * j + 4; i++) {
            float d = (ds[i] - less.x[i % 2]) * w[i];
            ds[i] = !HIDES || counts(span, i / 2 % 2, 8 * j + column + i % 2) ? d : 0;
        }
    }
}

template <u32 N> DEVICE void key_weights(Thread t, float (&s)[N / 2], const float* lse2, Viewer viewer, i32 q0, float scale2) {
    if (seen_by_all<N>(viewer, q0)) key_weights<N, false>(t, s, lse2, Span{}, scale2);
    else key_weights<N, true>(t, s, lse2, span_of(viewer, q0), scale2);
}

template <u32 N> DEVICE void key_grads(Thread t, float (&ds)[N / 2], const float (&w)[N / 2], const float* delta, Viewer viewer, i32 q0) {
    if (seen_by_all<N>(viewer, q0)) key_grads<N, false>(t, ds, w, delta, Span{});
    else key_grads<N, true>(t, ds, w, delta, span_of(viewer, q0));
}

// KeyTiles is where a group's 64 keys and values and the stages of queries lie, and which
// byte of a stage is that of the group's columns.
struct KeyTiles { u32 keys, values, queries, douts, ring, columns; };

// key_products leaves W columns of dk, but for the factor scale, and of dv of 64 keys in
// sums. These and the scores fill the registers, so that a step ends with all its products;
// another group multiplies meanwhile.
template <class T, u32 D, u32 W, u32 ROWS, u32 N>
DEVICE void key_products(Thread t, Shape p, KeyTiles x, const float* numbers, Tour tour, Viewer viewer, float (&sum_k)[W / 2],
                         float (&sum_v)[W / 2]) {
    enum : u32 { BYTES = Tile<D, N>::BYTES };
    float s[N / 2], ds[N / 2];
    FragA<T> weights[N / 16], grads[N / 16];
    i32 q0 = tour.first;
    UNROLL_1 for (u32 i = 0; i < tour.n; i++, q0 = next<N>(tour, q0)) {
        u32 queries = x.queries + i % STAGES * BYTES, douts = x.douts + i % STAGES * BYTES;
        const float *lse2 = numbers + i % STAGES * 2 * N, *delta = lse2 + N;
        wait_full(x.ring, i);
        multiply_begin();
        multiply_rows<T, D, ROWS, N>(s, x.keys, queries);
        multiply_rows<T, D, ROWS, N>(ds, x.values, douts);
        multiply_wait<1>();
        settled(s);
        key_weights<N>(t, s, lse2, viewer, q0, p.scale2);
        multiply_wait<0>();
        settled(ds);
        pack<T, N>(weights, s);
        key_grads<N>(t, ds, s, delta, viewer, q0);
        pack<T, N>(grads, ds);
        multiply_begin(sum_v, sum_k, weights, grads);
        add_rows<T, W, N>(sum_v, weights, douts + x.columns);
        add_rows<T, W, N>(sum_k, grads, queries + x.columns);
        multiply_wait<0>();
        settled(sum_v);
        settled(sum_k);
        release(t, x.ring, i);
    }
}

// hopper_backward_key computes dk and dv of tile number t.block of keys over tiles of N
// queries. A tile has 64 keys for every group, or for two that have half of the columns.
template <class T, u32 D, u32 GROUPS, u32 N, int LESS, int MORE>
DEVICE void hopper_backward_key(Thread t, Shape p, u8* memory, const TensorMap& dout, const TensorMap& q, const TensorMap& k,
                                const TensorMap& v, T* dk, T* dv, const f32* lse, const f32* delta) {
    enum : u32 { W = D < 128 ? D : 128, PARTS = D / W, ROWS = GROUP_ROWS * GROUPS / PARTS };
    using R = KeyRoom<D, ROWS, N>;
    u32 room = shared_address(memory), group = group_of(t);
    if (t.local == 0) {
        barrier_init(room + R::OWN_FULL, 1);
        ring_init(room + R::RING, 2, GROUPS * GROUP_WARPS);
        barrier_init_done();
    }
    sync_threads(); // barriers are there
    Item at = key_item(p, t.block, ROWS);
    Tour tour = tour_of<N>(p, at);
    if (group == GROUPS) {
        give_registers<LESS>();
        if (t.local < GROUPS * GROUP_THREADS + 32 && tour.n > 0)
            key_copies<D, ROWS, N>(t, p, memory, room, at, tour, dout, q, k, v, lse, delta);
        return;
    }
    take_registers<MORE>();
    u32 own = group / PARTS * GROUP_ROWS, from = group % PARTS * W;
    float sum_k[W / 2], sum_v[W / 2];
    clear(sum_k);
    clear(sum_v);
    if (tour.n > 0) {
        KeyTiles x = {room + R::KEYS + own * BOX_ROW, room + R::VALUES + own * BOX_ROW, room + R::QUERIES, room + R::DOUTS,
                      room + R::RING, from / BOX_COLUMNS * Tile<D, N>::BOX};
        barrier_wait(room + R::OWN_FULL, 0);
        key_products<T, D, W, ROWS, N>(t, p, x, (const float*)(memory + R::NUMBERS), tour, viewer_of(t, p, at.first + own), sum_k, sum_v);
    }
    Rows<T> to_k = rows_of(dk, p.k, at.b, at.h, at.first, p.seq_k, ROWS, p.dim);
    Rows<T> to_v = rows_of(dv, p.v, at.b, at.h, at.first, p.seq_k, ROWS, p.dim_v);
    u32 row = own + row_in_group(t);
    store_rows<W>(t, sum_k, p.scale, p.scale, columns_from(to_k, from), row);
    store_rows<W>(t, sum_v, 1, 1, columns_from(to_v, from), row);
}

#define HOPPER_BACKWARD_KEY(T, D, GROUPS, N, LESS, MORE)                                                                  \
    KERNEL_OF_GROUPS(attention_backward_key_hopper##D##_##T, (GROUPS + 1) * GROUP_THREADS, MAP(dout), MAP(q), MAP(k),   \
                     MAP(v), OPERAND(T, dk, 0), OPERAND(T, dv, 1), OPERAND(const f32, lse, 2), OPERAND(const f32, delta, 3), \
                     PARAMS(Shape, p)) {                                                                                \
        ROOM_OF_LAUNCH(room);                                                                                           \
        hopper_backward_key<T, D, GROUPS, N, LESS, MORE>(THREAD, p, room, dout, q, k, v, dk, dv, lse, delta);           \
    }
