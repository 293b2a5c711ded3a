// The values of 8-bit codes.
#pragma once
#include "elements.h"

// ---- octets: dst[i] = values[code i]·scale·factor, each product rounded. A thread takes packs of 16 bytes of the
// result.

// A matrix has columns of scales, across of them in a row, each for rows × cols elements. dst begins with row first.
struct OctetParams {
    u32 n; // elements of dst
    u32 first, in;
    u32 rows, cols, across;
    u32 even; // the elements of a pack share a scale
    u32 wide; // all packs lie at multiples of their size
    f32 factor;
    u32 unused;
    f32 values[256];
};

struct Scales {
    GLOBAL const f32* scales;
    u32 first, in, rows, cols, across;

    // of returns the scale of element at of dst.
    DEVICE_MEMBER float of(u32 at) const { return scales[(u64)((first + at / in) / rows) * across + at % in / cols]; }
};

template <class D>
DEVICE void octets(Thread t, GLOBAL D* dst, GLOBAL const u8* codes, Scales scales, u32 n, u32 even, u32 wide, float factor, GROUP const f32* values) {
    const u32 per = 16 / sizeof(D);
    u32 tile = t.threads * per * FLIGHT;
    for (u32 start = t.block * tile; start < n; start += t.blocks * tile) {
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            u32 at = start + (j * t.threads + t.local) * per;
            if (at >= n) break;
            u32 len = least(per, n - at);
            bool whole = wide && len == per;
            Pack<u8, per> c = {};
            if (whole) c = load_pack<per>(codes + at);
            UNROLL for (u32 k = 0; k < per; k++)
                if (!whole && k < len) c.x[k] = codes[at + k];
            float scale = scales.of(at);
            Pack<D, per> y = {};
            UNROLL for (u32 k = 0; k < per; k++) {
                if (!even && k > 0 && k < len) scale = scales.of(at + k);
                y.x[k] = narrow<D>(values[c.x[k]] * scale * factor);
            }
            if (whole) store_pack<per>(dst + at, y);
            UNROLL for (u32 k = 0; k < per; k++)
                if (!whole && k < len) dst[at + k] = y.x[k];
        }
    }
}

#define OCTETS(D)                                                                                                      \
    KERNEL(qlora_octets_##D, 256, OPERAND(D, dst, 0), OPERAND(const u8, codes, 1), OPERAND(const f32, scales, 2),      \
           PARAMS(OctetParams, p)) {                                                                                   \
        SHARED(f32, values, 256);                                                                                      \
        Thread t = THREAD;                                                                                             \
        values[t.local] = p.values[t.local];                                                                           \
        sync_threads();                                                                                                \
        Scales s = {scales, p.first, p.in, p.rows, p.cols, p.across};                                                  \
        octets<D>(t, dst, codes, s, p.n, p.even, p.wide, p.factor, values);                                            \
    }
FOR_FLOATS(OCTETS)
