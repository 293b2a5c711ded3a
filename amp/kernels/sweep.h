// Passes over gradients: scale them, sum their squares, look for values that
// are not finite.
#pragma once
#include "pack.h"
#include "wide.h"

// ---- scale: x[i] *= factor.

struct ScaleParams {
    u64 n;
    f32 factor;
    u32 wide;
};

template <class T> struct Scaled {
    float factor;
    DEVICE_MEMBER T operator()(T x) const { return narrow<T>(widen(x) * factor); }
};

#define SCALE(T)                                                                        \
    KERNEL(amp_scale_##T, 256, OPERAND(T, x, 0), PARAMS(ScaleParams, p)) {              \
        transform<T, T>(THREAD, x, x, p.n, p.wide, Scaled<T>{p.factor});                \
    }
FOR_FLOATS(SCALE)

// ---- sweep: scale, if asked to, and measure. Block b does piece b and adds
// what it finds to record b.

struct SweepParams {
    u64 n, piece; // elements of the gradient and of a piece, a multiple of those of a pack
    i64 ordinal;
    f32 factor;
    u32 write; // whether to scale
    u32 wide, unused;
};

// Record is what one piece of all gradients holds, as traversal.go has it.
struct Record {
    u64 squares; // a double
    i64 count, ordinal, index;
    f32 value;
    u32 unused;
};

// Found is what a thread saw: the squares, and how many values are not finite,
// the first of them at element `first`.
struct Found {
    Wide squares;
    u64 count, first;
};

DEVICE void look(PRIVATE Found& f, float x, u64 i) {
    f.squares = wide_sum(f.squares, wide_square(x));
    if (!is_finite(x) && f.count++ == 0) f.first = i;
}

DEVICE Found both(Found a, Found b) {
    u64 first = b.count && (!a.count || b.first < a.first) ? b.first : a.first;
    return Found{wide_sum(a.squares, b.squares), a.count + b.count, first};
}

// find sweeps elements lo to hi-1, which start and end with packs but for the
// end of the gradient, and returns what this thread saw.
template <class T> DEVICE Found find(Thread t, GLOBAL T* x, u64 lo, u64 hi, SweepParams p) {
    const u32 per = PerPack<T, T>::value;
    Scaled<T> scaled = {p.factor};
    Found f = {wide_zero(), 0, 0};
    u64 whole = p.wide ? lo + (hi - lo) / per * per : lo, step = (u64)t.threads * per;
    for (u64 i = lo + t.local * per; i < whole; i += FLIGHT * step) {
        Pack<T, per> y[FLIGHT];
        UNROLL for (u32 j = 0; j < FLIGHT; j++)
            if (i + j * step < whole) y[j] = *(GLOBAL const Pack<T, per>*)(x + i + j * step);
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            u64 at = i + j * step;
            if (at >= whole) break;
            if (p.write) {
                UNROLL for (u32 k = 0; k < per; k++) y[j].x[k] = scaled(y[j].x[k]);
                *(GLOBAL Pack<T, per>*)(x + at) = y[j];
            }
            UNROLL for (u32 k = 0; k < per; k++) look(f, widen(y[j].x[k]), at + k);
        }
    }
    for (u64 i = whole + t.local; i < hi; i += t.threads) {
        if (p.write) x[i] = scaled(x[i]);
        look(f, widen(x[i]), i);
    }
    return f;
}

template <class T> DEVICE void sweep(Thread t, GLOBAL T* x, GLOBAL Record* records, SweepParams p, GROUP Found* found) {
    u64 lo = t.block * p.piece;
    found[t.local] = find<T>(t, x, lo, least(lo + p.piece, p.n), p);
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) found[t.local] = both(found[t.local], found[t.local + d]);
    }
    if (t.local > 0) return;
    Found all = found[0];
    Record r = records[t.block];
    r.squares = double_of_wide(wide_sum(wide_of_double(r.squares), all.squares));
    if (all.count > 0 && r.count == 0) {
        r.ordinal = p.ordinal;
        r.index = (i64)all.first;
        r.value = widen(x[all.first]);
    }
    r.count += (i64)all.count;
    records[t.block] = r;
}

#define SWEEP(T)                                                                                            \
    KERNEL(amp_sweep_##T, 256, OPERAND(T, x, 0), OPERAND(Record, records, 1), PARAMS(SweepParams, p)) {     \
        SHARED(Found, found, 256);                                                                          \
        sweep<T>(THREAD, x, records, p, found);                                                             \
    }
FOR_FLOATS(SWEEP)
