// Rows whose element type is known at run time, so that one kernel does for all.
#pragma once
#include "tiles.h"

// Element types, as DType in Go.
enum { TYPE_F32 = 1, TYPE_F16 = 2, TYPE_BF16 = 3 };

// AnyRows is Rows of elements of any type.
struct AnyRows {
    GLOBAL u8* at; // the first one
    u64 stride;
    u32 n, dim, type;
};

// any_rows returns at most TILE rows from number first on, of the seq that there are.
DEVICE AnyRows any_rows(GLOBAL u8* x, u32 type, Strides s, u64 b, u64 h, i64 first, i64 seq, u32 dim) {
    u64 at = b * s.batch + h * s.head + (u64)first * s.row;
    return AnyRows{x + at * (type == TYPE_F32 ? 4 : 2), s.row, (u32)least(seq - first, (i64)TILE), dim, type};
}

template <class T> DEVICE Rows<T> as(AnyRows x) { return Rows<T>{(GLOBAL T*)x.at, x.stride, x.n, x.dim}; }

template <u32 N, u32 COLUMNS, u32 STRIDE>
DEVICE void stage(Thread t, GROUP Quad* room, AnyRows x, u32 first, u32 from) {
    if (x.type == TYPE_F32) stage<N, COLUMNS, STRIDE>(t, room, as<const f32>(x), first, from);
    else if (x.type == TYPE_F16) stage<N, COLUMNS, STRIDE>(t, room, as<const f16>(x), first, from);
    else stage<N, COLUMNS, STRIDE>(t, room, as<const bf16>(x), first, from);
}

DEVICE void store(Thread t, PRIVATE const Sums& sums, Quad factor, AnyRows x, u32 from) {
    if (x.type == TYPE_F32) store(t, sums, factor, as<f32>(x), from);
    else if (x.type == TYPE_F16) store(t, sums, factor, as<f16>(x), from);
    else store(t, sums, factor, as<bf16>(x), from);
}

DEVICE float any_at(GLOBAL const u8* x, u32 type, u64 i) {
    if (type == TYPE_F32) return ((GLOBAL const f32*)x)[i];
    if (type == TYPE_F16) return widen(((GLOBAL const f16*)x)[i]);
    return widen(((GLOBAL const bf16*)x)[i]);
}

DEVICE void any_put(GLOBAL u8* x, u32 type, u64 i, float v) {
    if (type == TYPE_F32) ((GLOBAL f32*)x)[i] = v;
    else if (type == TYPE_F16) ((GLOBAL f16*)x)[i] = narrow<f16>(v);
    else ((GLOBAL bf16*)x)[i] = narrow<bf16>(v);
}
