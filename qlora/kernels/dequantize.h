// The values of 4-bit codes.
#pragma once
#include "elements.h"
#include "table.h"

// ---- dequantize: dst[i] = values[code i]·absmax of its block. A thread takes
// packs of 16 bytes of the result, which lie in one block, since those have a
// multiple of 32 elements.

struct DequantizeParams {
    u64 n;
    u32 shift; // a block has 2^shift elements
    u32 wide;  // all packs lie at multiples of their size
    f32 values[16];
};

// With double quantization absmax is map[code]·nested + offset, both rounded, of
// blocks of 256.
struct DoubleParams {
    u64 n;
    u32 shift, wide;
    f32 values[16];
    f32 offset;
    u32 unused;
    f32 map[256];
};

enum { NESTED_BLOCK = 256 };

struct Single {
    GLOBAL const f32* absmax;

    DEVICE_MEMBER float of(u64 b) const { return absmax[b]; }
};

struct Double {
    GLOBAL const u8* codes;
    GLOBAL const f32* nested;
    GROUP const f32* map;
    float offset;

    DEVICE_MEMBER float of(u64 b) const { return map[codes[b]] * nested[b / NESTED_BLOCK] + offset; }
};

template <class D, class S>
DEVICE void dequantize(Thread t, GLOBAL D* dst, GLOBAL const u8* packed, S absmax, u64 n, u32 shift, u32 wide, GROUP const f32* values) {
    const u32 per = 16 / sizeof(D);
    u32 tile = t.threads * per * FLIGHT;
    for (u64 start = (u64)t.block * tile; start < n; start += (u64)t.blocks * tile) {
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            u64 at = start + (j * t.threads + t.local) * per;
            if (at >= n) break;
            u32 len = (u32)least((u64)per, n - at);
            bool whole = wide && len == per;
            Pack<u8, per / 2> c = {};
            if (whole) c = load_pack<per / 2>(packed + at / 2);
            UNROLL for (u32 k = 0; k < per / 2; k++)
                if (!whole && 2 * k < len) c.x[k] = packed[at / 2 + k];
            float scale = absmax.of(at >> shift);
            Pack<D, per> y;
            UNROLL for (u32 k = 0; k < per; k++) y.x[k] = narrow<D>(values[k % 2 ? c.x[k / 2] & 15 : c.x[k / 2] >> 4] * scale);
            if (whole) store_pack<per>(dst + at, y);
            UNROLL for (u32 k = 0; k < per; k++)
                if (!whole && k < len) dst[at + k] = y.x[k];
        }
    }
}

#define DEQUANTIZE(D)                                                                                                   \
    KERNEL(qlora_dequantize_##D, 256, OPERAND(D, dst, 0), OPERAND(const u8, packed, 1), OPERAND(const f32, absmax, 2), \
           PARAMS(DequantizeParams, p)) {                                                                               \
        SHARED(f32, values, 16);                                                                                        \
        Thread t = THREAD;                                                                                              \
        FILL16(values);                                                                                                 \
        sync_threads();                                                                                                 \
        Single s = {absmax};                                                                                            \
        dequantize<D>(t, dst, packed, s, p.n, p.shift, p.wide, values);                                                 \
    }
FOR_FLOATS(DEQUANTIZE)

#define DEQUANTIZE_DOUBLE(D)                                                                                          \
    KERNEL(qlora_double_##D, 256, OPERAND(D, dst, 0), OPERAND(const u8, packed, 1), OPERAND(const u8, codes, 2),     \
           OPERAND(const f32, nested, 3), PARAMS(DoubleParams, p)) {                                                  \
        SHARED(f32, values, 16);                                                                                      \
        SHARED(f32, map, 256);                                                                                        \
        Thread t = THREAD;                                                                                            \
        FILL16(values);                                                                                               \
        map[t.local] = p.map[t.local];                                                                                \
        sync_threads();                                                                                               \
        Double s = {codes, nested, map, p.offset};                                                                    \
        dequantize<D>(t, dst, packed, s, p.n, p.shift, p.wide, values);                                               \
    }
FOR_FLOATS(DEQUANTIZE_DOUBLE)
