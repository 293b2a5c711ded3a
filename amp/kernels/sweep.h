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

// find sweeps elements lo to hi-1, which start and end with packs but for the
// end of the gradient, and returns what this thread saw.
template <class T> DEVICE Found find(Thread t, GLOBAL T* x, u64 lo, u64 hi, SweepParams p) {
    const u32 per = 16 / sizeof(T);
    Found f = found_nothing();
    u64 whole = p.wide ? lo + (hi - lo) / per * per : lo, step = (u64)t.threads * per;
    for (u64 i = lo + t.local * per; i < whole; i += FLIGHT * step) {
        Pack<T, per> y[FLIGHT];
        UNROLL for (u32 j = 0; j < FLIGHT; j++)
            if (i + j * step < whole) y[j] = *(GLOBAL const Pack<T, per>*)(x + i + j * step);
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            u64 at = i + j * step;
            if (at >= whole) break;
            if (p.write) {
                UNROLL for (u32 k = 0; k < per; k++) y[j].x[k] = changed(y[j].x[k], p);
                *(GLOBAL Pack<T, per>*)(x + at) = y[j];
            }
            UNROLL for (u32 k = 0; k < per; k++) look(f, widen(y[j].x[k]), at + k);
        }
    }
    for (u64 i = whole + t.local; i < hi; i += t.threads) {
        if (p.write) x[i] = changed(x[i], p);
        look(f, widen(x[i]), i);
    }
    return f;
}

#define SWEEP(T)                                                                                            \
    KERNEL(amp_sweep_##T, 256, OPERAND(T, x, 0), OPERAND(Record, records, 1), PARAMS(SweepParams, p)) {     \
        SHARED(Found, found, 256);                                                                          \
        Thread t = THREAD;                                                                                  \
        u64 lo = t.block * p.piece;                                                                         \
        Found mine = find<T>(t, x, lo, least(lo + p.piece, p.n), p);                                        \
        add_found(t, mine, x, p.ordinal, records + t.block, t.block < p.used, found);                       \
    }
FOR_FLOATS(SWEEP)
