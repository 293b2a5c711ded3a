// The entry points of what runs on matrix units, for rows of up to 64, 128 and 256
// elements.
#pragma once
#include "units_pairs.h"

// UNIT_ROOM is the 16 bytes of block memory that any of them needs, and tiles.h.
enum { UNIT_ROOM = 1728, UNIT_ROOM_256 = 1888 };

#define UNIT_ENTRIES(T, D, ROOM_OF, QUERIES, FORWARD_BODY, SPLIT_BODY, QUERY_BODY, KEY_BODY)                           \
    KERNEL(attention_forward_unit##D##_##T, 256, OPERAND(T, out, 0), OPERAND(f32, lse, 1), OPERAND(const T, q, 2),     \
           OPERAND(const T, k, 3), OPERAND(const T, v, 4), PARAMS(Shape, p)) {                                         \
        SHARED(Wide16, room, ROOM_OF);                                                                                 \
        Thread t = THREAD;                                                                                             \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            FORWARD_BODY(t, room, p, query_item(p, item, UNIT_QUERIES), out, lse, q, k, v);                            \
    }                                                                                                                  \
    KERNEL(attention_split_unit##D##_##T, 256, OPERAND(f32, sums, 0), OPERAND(f32, states, 1), OPERAND(const T, q, 2),  \
           OPERAND(const T, k, 3), OPERAND(const T, v, 4), PARAMS(Split, p)) {                                         \
        SHARED(Wide16, room, ROOM_OF);                                                                                 \
        Thread t = THREAD;                                                                                             \
        for (u64 item = t.block; item < p.shape.items; item += t.blocks)                                               \
            SPLIT_BODY(t, room, p, query_item(p.shape, item / p.splits, UNIT_QUERIES), (u32)(item % p.splits), sums,    \
                       states, q, k, v);                                                                               \
    }                                                                                                                  \
    KERNEL(attention_backward_query_unit##D##_##T, 256, OPERAND(T, dq, 0), OPERAND(const T, dout, 1),                  \
           OPERAND(const T, q, 2), OPERAND(const T, k, 3), OPERAND(const T, v, 4), OPERAND(const f32, lse, 5),         \
           OPERAND(const f32, delta, 6), PARAMS(Shape, p)) {                                                           \
        SHARED(Wide16, room, ROOM_OF);                                                                                 \
        Thread t = THREAD;                                                                                             \
        Operands<T> x = {dout, q, k, v, lse, delta};                                                                   \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            QUERY_BODY(t, room, p, query_item(p, item, QUERIES), dq, x);                                               \
    }                                                                                                                  \
    KERNEL(attention_backward_key_unit##D##_##T, 256, OPERAND(T, dk, 0), OPERAND(T, dv, 1), OPERAND(const T, dout, 2), \
           OPERAND(const T, q, 3), OPERAND(const T, k, 4), OPERAND(const T, v, 5), OPERAND(const f32, lse, 6),         \
           OPERAND(const f32, delta, 7), PARAMS(Shape, p)) {                                                           \
        SHARED(Wide16, room, ROOM_OF);                                                                                 \
        Thread t = THREAD;                                                                                             \
        Operands<T> x = {dout, q, k, v, lse, delta};                                                                   \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            KEY_BODY(t, room, p, key_item(p, item, HALF_ROWS), dk, dv, x);                                             \
    }

// The last numbers are the keys of a step of the passes over keys, and the queries of a
// step of the one over queries: such that block memory holds them, and for rows of 64
// elements registers two blocks. Those of one hold fragments and sums of 256 columns,
// 192 a thread; dq needs the fragments of two operands, hence the pairs.
#define UNITS_OF(T)                                                                                                    \
    UNIT_ENTRIES(T, 64, UNIT_ROOM, UNIT_QUERIES, (unit_forward<T, 64, 64>), (unit_split<T, 64, 64>),                   \
                 (unit_backward_query<T, 64, 32>), (unit_backward_key<T, 64, 32>))                                     \
    UNIT_ENTRIES(T, 128, UNIT_ROOM, UNIT_QUERIES, (unit_forward<T, 128, 48>), (unit_split<T, 128, 48>),                \
                 (unit_backward_query<T, 128, 32>), (unit_backward_key<T, 128, 16>))                                   \
    UNIT_ENTRIES(T, 256, UNIT_ROOM_256, HALF_ROWS, (unit_forward<T, 256, 48>), (unit_split<T, 256, 48>),               \
                 (pair_backward_query<T, 256, 16>), (unit_backward_key<T, 256, 16>))
UNITS_OF(f16)
#if defined(SNUG_CUDA) || __METAL_VERSION__ >= 310
UNITS_OF(bf16)
#else // Metal has no bfloat before 3.1: do what tiles.h does

DEVICE void no_units_forward(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL bf16* out, GLOBAL f32* lse, GLOBAL const bf16* q,
                             GLOBAL const bf16* k, GLOBAL const bf16* v) {
    for (i64 end = least(at.first + UNIT_QUERIES, p.seq_q); at.first < end; at.first += TILE)
        for (u32 from = 0; from < p.dim_v; from += WIDTH)
            forward<bf16>(t, (GROUP Quad*)room, p, at, from, out, lse, q, k, v);
}

DEVICE void no_units_split(Thread t, GROUP Wide16* room, Split of, Item at, u32 n, GLOBAL f32* left, GLOBAL f32* states,
                           GLOBAL const bf16* q, GLOBAL const bf16* k, GLOBAL const bf16* v) {
    Shape p = of.shape;
    for (i64 end = least(at.first + UNIT_QUERIES, p.seq_q); at.first < end; at.first += TILE)
        for (u32 from = 0; from < p.dim_v; from += WIDTH) {
            Softmax state;
            Sums sums;
            forward_sums<bf16>(t, (GROUP Quad*)room, p, at, split_of(keys_of(p, at, TILE), of.splits, n, TILE), from, q, k, v, state, sums);
            u64 row = n * p.rows + row_number(p, at.b, at.h, at.first);
            Rows<f32> to = left_rows(left, row, (u32)least(p.seq_q - at.first, (i64)TILE), p.dim_v);
            leave(t, state, sums, to, from, states + 2 * row);
        }
}

template <u32 QUERIES>
DEVICE void no_units_backward_query(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL bf16* dq, Operands<bf16> x) {
    for (i64 end = least(at.first + QUERIES, p.seq_q); at.first < end; at.first += TILE)
        for (u32 from = 0; from < p.dim; from += WIDTH) backward_query<bf16>(t, (GROUP Quad*)room, p, at, from, dq, x);
}

DEVICE void no_units_backward_key(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL bf16* dk, GLOBAL bf16* dv, Operands<bf16> x) {
    for (u32 from = 0; from < greatest(p.dim, p.dim_v); from += WIDTH)
        backward_key<bf16>(t, (GROUP Quad*)room, p, at, from, dk, dv, x);
}

#define NO_UNITS(D, QUERIES) \
    UNIT_ENTRIES(bf16, D, UNIT_ROOM, QUERIES, no_units_forward, no_units_split, no_units_backward_query<QUERIES>, no_units_backward_key)
NO_UNITS(64, UNIT_QUERIES)
NO_UNITS(128, UNIT_QUERIES)
NO_UNITS(256, HALF_ROWS)
#endif
