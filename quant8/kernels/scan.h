// The first gradient that is too large.
#pragma once
#include "quantize.h"

// ---- scan: block b looks for the first element of piece b whose magnitude
// times scale has bits of limit or more, and writes its place in the piece to
// found[b], or NONE.

struct ScanParams {
    u64 n, piece; // elements, and those of a piece, a multiple of those of a pack
    f32 scale;
    u32 limit;
    u32 wide, unused;
};

enum : u32 { NONE = 0xffffffffu };

DEVICE bool not_below(float x, float scale, u32 limit) { return (float_bits(x * scale) & 0x7fffffffu) >= limit; }

// first_of returns the first element of x, of which there are n, that is not
// below the limit and that this thread looked at, or NONE.
template <class T> DEVICE u32 first_of(Thread t, GLOBAL const T* x, u32 n, ScanParams p) {
    const u32 per = 16 / sizeof(T);
    GLOBAL const Pack<T, per>* from = (GLOBAL const Pack<T, per>*)x;
    u32 packs = p.wide ? n / per : 0;
    for (u32 i = t.local; i < packs; i += FLIGHT * t.threads) {
        Pack<T, per> y[FLIGHT];
        UNROLL for (u32 j = 0; j < FLIGHT; j++)
            if (i + j * t.threads < packs) y[j] = from[i + j * t.threads];
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            if (i + j * t.threads >= packs) break;
            UNROLL for (u32 k = 0; k < per; k++)
                if (not_below(widen(y[j].x[k]), p.scale, p.limit)) return (i + j * t.threads) * per + k;
        }
    }
    for (u32 i = packs * per + t.local; i < n; i += t.threads)
        if (not_below(widen(x[i]), p.scale, p.limit)) return i;
    return NONE;
}

template <class T> DEVICE void scan(Thread t, GLOBAL u32* found, GLOBAL const T* x, ScanParams p, GROUP u32* first) {
    u64 lo = t.block * p.piece;
    first[t.local] = first_of(t, x + lo, (u32)least(p.piece, p.n - lo), p);
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) first[t.local] = least(first[t.local], first[t.local + d]);
    }
    if (t.local == 0) found[t.block] = first[0];
}

#define SCAN(T)                                                                                              \
    KERNEL(quant8_scan_##T, 256, OPERAND(u32, found, 0), OPERAND(const T, x, 1), PARAMS(ScanParams, p)) {    \
        SHARED(u32, first, 256);                                                                             \
        scan<T>(THREAD, found, x, p, first);                                                                 \
    }
FOR_FLOATS(SCAN)
