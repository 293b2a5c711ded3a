// The backward pass of queries on compute capability 9.0.
#pragma once
#include "hopper_forward.h"
#include "query.h"

// QueryRoom is where things lie in block memory, for ROWS queries and tiles of N keys.
template <u32 D, u32 ROWS, u32 N> struct QueryRoom {
    enum : u32 {
        QUERIES = 0,
        DOUTS = Tile<D, ROWS>::BYTES,
        KEYS = 2 * DOUTS,
        VALUES = KEYS + STAGES * Tile<D, N>::BYTES,
        KEY_RING = VALUES + STAGES * Tile<D, N>::BYTES,
        VALUE_RING = KEY_RING + RING_BYTES,
        OWN_FULL = VALUE_RING + RING_BYTES, // queries and dout
    };
};

// query_copies is what the copying thread does, as forward_copies.
template <u32 D, u32 ROWS, u32 N>
DEVICE void query_copies(Shape p, u32 room, Item at, Steps steps, const TensorMap& dout, const TensorMap& q, const TensorMap& k,
                         const TensorMap& v) {
    using R = QueryRoom<D, ROWS, N>;
    enum : u32 { BYTES = Tile<D, N>::BYTES };
    u32 h = (u32)at.h, kv = (u32)(at.h / p.group), b = (u32)at.b;
    barrier_expect(room + R::OWN_FULL, 2 * Tile<D, ROWS>::BYTES);
    copy_tile<D, ROWS>(room + R::QUERIES, q, (i32)at.first, h, b, room + R::OWN_FULL);
    copy_tile<D, ROWS>(room + R::DOUTS, dout, (i32)at.first, h, b, room + R::OWN_FULL);
    UNROLL_1 for (u32 i = 0; i < steps.n; i++) {
        u32 stage = i % STAGES * BYTES;
        i32 k0 = key_of<N>(steps, i);
        wait_empty(room + R::KEY_RING, i);
        barrier_expect(full_of(room + R::KEY_RING, i), BYTES);
        copy_tile<D, N>(room + R::KEYS + stage, k, k0, kv, b, full_of(room + R::KEY_RING, i));
        wait_empty(room + R::VALUE_RING, i);
        barrier_expect(full_of(room + R::VALUE_RING, i), BYTES);
        copy_tile<D, N>(room + R::VALUES + stage, v, k0, kv, b, full_of(room + R::VALUE_RING, i));
    }
}

// query_grads turns products of dout into the gradients of scores, but for the factor
// scale, as unit_grads.
template <u32 N, bool HIDES>
DEVICE void query_grads(Thread t, float (&ds)[N / 2], const float (&s)[N / 2], const Query (&query)[2], Span span, float scale2) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 i = 0; i < N / 2; i++) {
        u32 h = i / 2 % 2;
        float w = quick_exp2(fused_mul_add(s[i], scale2, -query[h].lse2));
        float d = (ds[i] - query[h].delta) * w;
        ds[i] = !HIDES || counts(span, h, i / 4 * 8 + column + i % 2) ? d : 0;
    }
}

// query_products leaves dq of a group's 64 queries, but for the factor scale, in sums.
// Keys are done with when their products are added to sums, which goes on while the next
// scores are computed.
template <class T, u32 D, u32 GROUPS, u32 N>
DEVICE void query_products(Thread t, Shape p, u32 room, u32 group, Steps steps, Seer seer, const Query (&query)[2], float (&sums)[D / 2]) {
    enum : u32 { ROWS = GROUPS * GROUP_ROWS, BYTES = Tile<D, N>::BYTES };
    using R = QueryRoom<D, ROWS, N>;
    u32 key_ring = room + R::KEY_RING, value_ring = room + R::VALUE_RING;
    u32 queries = room + R::QUERIES + group * GROUP_ROWS * BOX_ROW, douts = room + R::DOUTS + group * GROUP_ROWS * BOX_ROW;
    float s[N / 2], ds[N / 2];
    FragA<T> w[N / 16];
    barrier_wait(room + R::OWN_FULL, 0);
    UNROLL_1 for (u32 i = 0; i < steps.n; i++) {
        u32 keys = room + R::KEYS + i % STAGES * BYTES, values = room + R::VALUES + i % STAGES * BYTES;
        wait_full(key_ring, i);
        wait_full(value_ring, i);
        multiply_begin();
        multiply_rows<T, D, ROWS, N>(s, queries, keys);
        multiply_rows<T, D, ROWS, N>(ds, douts, values);
        multiply_wait<2>(); // for the step before: keys and w are done with
        if (i > 0) release(t, key_ring, i - 1);
        multiply_wait<0>();
        settled(s);
        settled(ds);
        release(t, value_ring, i);
        i32 k0 = key_of<N>(steps, i);
        if (sees_all<N>(seer, k0)) query_grads<N, false>(t, ds, s, query, Span{}, p.scale2);
        else query_grads<N, true>(t, ds, s, query, span_of(seer, k0), p.scale2);
        pack<T, N>(w, ds);
        multiply_begin(sums, w);
        add_rows<T, D, N>(sums, w, keys);
    }
    multiply_wait<0>();
    settled(sums);
}

// hopper_backward_query computes dq of tile number t.block of GROUPS·64 queries over
// tiles of N keys.
template <class T, u32 D, u32 GROUPS, u32 N, int LESS, int MORE>
DEVICE void hopper_backward_query(Thread t, Shape p, u8* memory, const TensorMap& dout, const TensorMap& q, const TensorMap& k,
                                  const TensorMap& v, T* dq, const f32* lse, const f32* delta) {
    enum : u32 { ROWS = GROUPS * GROUP_ROWS };
    using R = QueryRoom<D, ROWS, N>;
    u32 room = shared_address(memory), group = group_of(t);
    if (t.local == 0) {
        barrier_init(room + R::OWN_FULL, 1);
        ring_init(room + R::KEY_RING, 1, GROUPS * GROUP_WARPS);
        ring_init(room + R::VALUE_RING, 1, GROUPS * GROUP_WARPS);
        barrier_init_done();
    }
    sync_threads(); // barriers are there
    Item at = query_item(p, t.block, ROWS);
    Steps steps = steps_of<N>(p, at, ROWS);
    if (group == GROUPS) {
        give_registers<LESS>();
        if (t.local == GROUPS * GROUP_THREADS && steps.n > 0) query_copies<D, ROWS, N>(p, room, at, steps, dout, q, k, v);
        return;
    }
    take_registers<MORE>();
    float sums[D / 2];
    clear(sums);
    u32 row = group * GROUP_ROWS + row_in_group(t);
    Rows<T> to = rows_of(dq, p.q, at.b, at.h, at.first, p.seq_q, ROWS, p.dim);
    if (steps.n > 0) {
        u64 number = row_number(p, at.b, at.h, at.first);
        Query query[2] = {query_of(lse + number, delta + number, row, to.n), query_of(lse + number, delta + number, row + 8, to.n)};
        Seer seer = seer_of(t, p, at.first + group * GROUP_ROWS);
        query_products<T, D, GROUPS, N>(t, p, room, group, steps, seer, query, sums);
    }
    store_rows<D>(t, sums, p.scale, p.scale, to, row);
}

#define HOPPER_BACKWARD_QUERY(T, D, GROUPS, N, LESS, MORE)                                                                \
    KERNEL_OF_GROUPS(attention_backward_query_hopper##D##_##T, (GROUPS + 1) * GROUP_THREADS, MAP(dout), MAP(q), MAP(k), \
                     MAP(v), OPERAND(T, dq, 0), OPERAND(const f32, lse, 1), OPERAND(const f32, delta, 2), PARAMS(Shape, p)) { \
        ROOM_OF_LAUNCH(room);                                                                                           \
        hopper_backward_query<T, D, GROUPS, N, LESS, MORE>(THREAD, p, room, dout, q, k, v, dq, lse, delta);             \
    }
