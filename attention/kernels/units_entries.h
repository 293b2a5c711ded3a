// The entry points of what runs on matrix units, for rows of 64 and of 128 elements.
#pragma once
#include "units_backward.h"

// UNIT_ROOM is the 16 bytes of block memory that any of them needs, and tiles.h.
enum { UNIT_ROOM = 1728 };

#define UNIT_ENTRIES(T, D, FORWARD_BODY, QUERY_BODY, KEY_BODY)                                                         \
    KERNEL(attention_forward_unit##D##_##T, 256, OPERAND(T, out, 0), OPERAND(f32, lse, 1), OPERAND(const T, q, 2),     \
           OPERAND(const T, k, 3), OPERAND(const T, v, 4), PARAMS(Shape, p)) {                                         \
        SHARED(Wide16, room, UNIT_ROOM);                                                                               \
        Thread t = THREAD;                                                                                             \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            FORWARD_BODY(t, room, p, query_item(p, item, UNIT_QUERIES), out, lse, q, k, v);                            \
    }                                                                                                                  \
    KERNEL(attention_backward_query_unit##D##_##T, 256, OPERAND(T, dq, 0), OPERAND(const T, dout, 1),                  \
           OPERAND(const T, q, 2), OPERAND(const T, k, 3), OPERAND(const T, v, 4), OPERAND(const f32, lse, 5),         \
           OPERAND(const f32, delta, 6), PARAMS(Shape, p)) {                                                           \
        SHARED(Wide16, room, UNIT_ROOM);                                                                               \
        Thread t = THREAD;                                                                                             \
        Operands<T> x = {dout, q, k, v, lse, delta};                                                                   \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            QUERY_BODY(t, room, p, query_item(p, item, UNIT_QUERIES), dq, x);                                          \
    }                                                                                                                  \
    KERNEL(attention_backward_key_unit##D##_##T, 256, OPERAND(T, dk, 0), OPERAND(T, dv, 1), OPERAND(const T, dout, 2), \
           OPERAND(const T, q, 3), OPERAND(const T, k, 4), OPERAND(const T, v, 5), OPERAND(const f32, lse, 6),         \
           OPERAND(const f32, delta, 7), PARAMS(Shape, p)) {                                                           \
        SHARED(Wide16, room, UNIT_ROOM);                                                                               \
        Thread t = THREAD;                                                                                             \
        Operands<T> x = {dout, q, k, v, lse, delta};                                                                   \
        for (u64 item = t.block; item < p.items; item += t.blocks)                                                     \
            KEY_BODY(t, room, p, key_item(p, item, HALF_ROWS), dk, dv, x);                                             \
    }

// Of D follow the keys of a step of the two passes over keys, and the queries of a
// step of the one over queries: such that block memory holds them, and for rows of
// 64 elements registers two blocks.
#define UNITS_OF(T, D, FORWARD_KEYS, BACKWARD_KEYS, QUERIES)                                                           \
    UNIT_ENTRIES(T, D, (unit_forward<T, D, FORWARD_KEYS>), (unit_backward_query<T, D, BACKWARD_KEYS>),                 \
                 (unit_backward_key<T, D, QUERIES>))
UNITS_OF(f16, 64, 64, 32, 32)
UNITS_OF(f16, 128, 48, 32, 16)
#if defined(SNUG_CUDA) || defined(SNUG_EMU) || __METAL_VERSION__ >= 310
UNITS_OF(bf16, 64, 64, 32, 32)
UNITS_OF(bf16, 128, 48, 32, 16)
#else // Metal has no bfloat before 3.1: do what tiles.h does

DEVICE void no_units_forward(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL bf16* out, GLOBAL f32* lse, GLOBAL const bf16* q,
                             GLOBAL const bf16* k, GLOBAL const bf16* v) {
    for (i64 end = least(at.first + UNIT_QUERIES, p.seq_q); at.first < end; at.first += TILE)
        forward<bf16>(t, (GROUP Quad*)room, p, at, 0, out, lse, q, k, v);
}

DEVICE void no_units_backward_query(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL bf16* dq, Operands<bf16> x) {
    for (i64 end = least(at.first + UNIT_QUERIES, p.seq_q); at.first < end; at.first += TILE)
        backward_query<bf16>(t, (GROUP Quad*)room, p, at, 0, dq, x);
}

DEVICE void no_units_backward_key(Thread t, GROUP Wide16* room, Shape p, Item at, GLOBAL bf16* dk, GLOBAL bf16* dv, Operands<bf16> x) {
    backward_key<bf16>(t, (GROUP Quad*)room, p, at, 0, dk, dv, x);
}

UNIT_ENTRIES(bf16, 64, no_units_forward, no_units_backward_query, no_units_backward_key)
UNIT_ENTRIES(bf16, 128, no_units_forward, no_units_backward_query, no_units_backward_key)
#endif
