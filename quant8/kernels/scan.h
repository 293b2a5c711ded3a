// The first gradient that is too large.
#pragma once
#include "search.h"

// ---- scan: block b looks for the first element of piece b whose magnitude
// times scale has bits of limit or more, and writes its place in the piece to
// found[b], or NONE.

struct ScanParams {
    u64 n, piece; // elements, and those of a piece, a multiple of those of a pack
    f32 scale;
    u32 limit;
    u32 wide, unused;
};

struct NotBelow {
    float scale;
    u32 limit;

    DEVICE_MEMBER bool operator()(float x) const { return (float_bits(x * scale) & 0x7fffffffu) >= limit; }
};

template <class T> DEVICE void scan(Thread t, GLOBAL u32* found, GLOBAL const T* x, ScanParams p, GROUP u32* first) {
    u64 lo = t.block * p.piece;
    NotBelow above = {p.scale, p.limit};
    block_first(t, first_where(t, x + lo, (u32)least(p.piece, p.n - lo), p.wide, above), first);
    if (t.local == 0) found[t.block] = first[0];
}

#define SCAN(T)                                                                                              \
    KERNEL(quant8_scan_##T, 256, OPERAND(u32, found, 0), OPERAND(const T, x, 1), PARAMS(ScanParams, p)) {    \
        SHARED(u32, first, 256);                                                                             \
        scan<T>(THREAD, found, x, p, first);                                                                 \
    }
FOR_FLOATS(SCAN)
