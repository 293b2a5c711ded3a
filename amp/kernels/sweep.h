// Passes over gradients: scale them or cut them off, sum their squares, look for
// values that are not finite.
#pragma once
#include "measure.h"

// ---- sweep: scale and cut off, if asked to, and measure. Block b does piece b
// and adds what it finds to record b.

struct SweepParams {
    u64 n, piece; // elements of the gradient and of a piece, a multiple of those of a pack
    i64 ordinal;
    f32 factor, limit; // an infinite limit cuts nothing off
    u32 write;         // whether to change the gradient
    u32 wide;
    u32 used; // how many records earlier passes have written
    u32 unused;
};

// cut_off makes NaNs of what is not finite.
DEVICE float cut_off(float x, float limit) {
    if (!is_finite(x)) return bits_float(0x7fc00000u);
    return x > limit ? limit : x < -limit ? -limit : x;
}

template <class T> DEVICE T changed(T x, PRIVATE const SweepParams& p) {
    float y = widen(x) * p.factor;
    return narrow<T>(is_finite(p.limit) ? cut_off(y, p.limit) : y);
}

// measure_pack changes the elements of a pack at x, if asked to, and adds their squares.
template <class T, int per>
DEVICE void measure_pack(PRIVATE Sums& s, PRIVATE Pack<T, per>& y, GLOBAL T* x, PRIVATE const SweepParams& p) {
    if (p.write) {
        UNROLL for (u32 k = 0; k < per; k++) y.x[k] = changed(y.x[k], p);
        store_pack<per>(x, y);
    }
    UNROLL for (u32 k = 0; k < per; k++) add_square(s, k, widen(y.x[k]));
}

// sweep measures this thread's elements of a piece, and returns the sum of their squares.
template <class T> DEVICE Wide sweep(Thread t, GLOBAL T* x, Piece piece, SweepParams p) {
    const u32 per = 16 / sizeof(T);
    Sums s = no_sums();
    u64 i = piece.lo + t.local * per, step = (u64)t.threads * per;
    for (; i + (FLIGHT - 1) * step < piece.whole; i += FLIGHT * step) {
        Pack<T, per> y[FLIGHT];
        UNROLL for (u32 j = 0; j < FLIGHT; j++) y[j] = load_pack<per>(x + i + j * step);
        UNROLL for (u32 j = 0; j < FLIGHT; j++) measure_pack<T, per>(s, y[j], x + i + j * step, p);
    }
    for (; i < piece.whole; i += step) {
        Pack<T, per> y = load_pack<per>(x + i);
        measure_pack<T, per>(s, y, x + i, p);
    }
    for (i = piece.whole + t.local; i < piece.hi; i += t.threads) {
        if (p.write) x[i] = changed(x[i], p);
        add_square(s, 0, widen(x[i]));
    }
    return sum_of(s);
}

#define SWEEP(T)                                                                                            \
    KERNEL(amp_sweep_##T, 256, OPERAND(T, x, 0), OPERAND(Record, records, 1), PARAMS(SweepParams, p)) {     \
        SHARED(Scratch, scratch, 256);                                                                      \
        Thread t = THREAD;                                                                                  \
        Piece piece = piece_of(t, p.n, p.piece, 16 / sizeof(T), p.wide);                                    \
        Wide squares = sweep<T>(t, x, piece, p);                                                            \
        add_found(t, squares, x, piece, p.ordinal, records + t.block, t.block < p.used, scratch);           \
    }
FOR_FLOATS(SWEEP)

#if defined(SNUG_CUDA)

// ---- sweeps: sweep of many gradients. A block does one piece of one of them, and leaves what it finds in a record of its
// own.

struct SweepItem {
    u64 x, n; // address and elements of a gradient
    u32 first, piece, ordinal, type;
};

struct SweepsParams {
    f32 factor, limit;
    u32 write, count;
    SweepItem items[MAX_VECTORS];
};

template <class T>
DEVICE void sweep_item(Thread t, SweepItem item, SweepParams p, GLOBAL Record* record, GROUP Scratch* scratch) {
    GLOBAL T* x = at_address<T>(item.x);
    Piece piece = piece_of(t, item.n, item.piece, 16 / sizeof(T), p.wide);
    Wide squares = sweep<T>(t, x, piece, p);
    add_found(t, squares, x, piece, item.ordinal, record, false, scratch);
}

KERNEL(amp_sweeps, 256, OPERAND(Record, parts, 0), PARAMS(SweepsParams, all)) {
    SHARED(Scratch, scratch, 256);
    Thread t = THREAD;
    u32 i = item_of(t.block, all);
    SweepItem item = all.items[i];
    SweepParams p = {item.n, item.piece, item.ordinal, all.factor, all.limit, all.write, is_wide(item.x, 0), 0, 0};
    GLOBAL Record* record = parts + t.block;
    t = of_item(t, i, all);
    if (item.type == 1) sweep_item<f32>(t, item, p, record, scratch);
    else if (item.type == 2) sweep_item<f16>(t, item, p, record, scratch);
    else sweep_item<bf16>(t, item, p, record, scratch);
}

GATHER(amp_gather)

#endif
