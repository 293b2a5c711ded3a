// Elements that move together, and the loop that goes through a vector.
#pragma once
#include "elements.h"

// PerPack is how many elements of the larger type are 16 bytes.
template <class D, class S> struct PerPack { enum { value = 16 / (sizeof(D) > sizeof(S) ? sizeof(D) : sizeof(S)) }; };

// transform computes dst[i] = f(src[i]). dst may be src. wide says that both
// start at multiples of 16 bytes.
template <class D, class S, class F>
DEVICE void transform(Thread t, GLOBAL D* dst, GLOBAL const S* src, u64 n, u32 wide, F f) {
    const u32 per = PerPack<D, S>::value;
    GLOBAL Pack<D, per>* to = (GLOBAL Pack<D, per>*)dst;
    GLOBAL const Pack<S, per>* from = (GLOBAL const Pack<S, per>*)src;
    u64 begin = (u64)t.block * t.threads + t.local, step = (u64)t.blocks * t.threads, packs = wide ? n / per : 0;
    for (u64 i = begin; i < packs; i += FLIGHT * step) {
        Pack<S, per> x[FLIGHT];
        UNROLL for (u32 j = 0; j < FLIGHT; j++)
            if (i + j * step < packs) x[j] = from[i + j * step];
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            if (i + j * step >= packs) break;
            Pack<D, per> y;
            UNROLL for (u32 k = 0; k < per; k++) y.x[k] = f(x[j].x[k]);
            to[i + j * step] = y;
        }
    }
    for (u64 i = packs * per + begin; i < n; i += step) dst[i] = f(src[i]);
}
