// The first element of a vector that a test finds.
#pragma once
#include "elements.h"

enum : u32 { NONE = 0xffffffffu };

// first_where returns the first element of x, of which there are n, for which
// found(element) holds and that this thread looked at, or NONE. wide says that x
// starts at a multiple of 16 bytes.
template <class T, class F> DEVICE u32 first_where(Thread t, GLOBAL const T* x, u32 n, u32 wide, PRIVATE const F& found) {
    const u32 per = 16 / sizeof(T);
    GLOBAL const Pack<T, per>* from = (GLOBAL const Pack<T, per>*)x;
    u32 packs = wide ? n / per : 0;
    for (u32 i = t.local; i < packs; i += FLIGHT * t.threads) {
        Pack<T, per> y[FLIGHT];
        UNROLL for (u32 j = 0; j < FLIGHT; j++)
            if (i + j * t.threads < packs) y[j] = from[i + j * t.threads];
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            if (i + j * t.threads >= packs) break;
            UNROLL for (u32 k = 0; k < per; k++)
                if (found(widen(y[j].x[k]))) return (i + j * t.threads) * per + k;
        }
    }
    for (u32 i = packs * per + t.local; i < n; i += t.threads)
        if (found(widen(x[i]))) return i;
    return NONE;
}

// block_first leaves the least of mine over the block in first[0], for thread 0.
DEVICE void block_first(Thread t, u32 mine, GROUP u32* first) {
    first[t.local] = mine;
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) first[t.local] = least(first[t.local], first[t.local + d]);
    }
}
