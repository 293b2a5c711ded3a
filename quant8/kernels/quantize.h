// Blockwise quantization and its inverse.
#pragma once
#include "codes.h"

// ---- quantize: a team of threads takes one block at a time.

struct QuantizeParams {
    u64 n;
    u32 block, lanes; // elements of a block, threads of a team
    u32 wide, unused; // whole blocks lie at multiples of packs
    i32 tree[TREE];
};

template <class T>
DEVICE void quantize(Thread t, GLOBAL u8* codes, GLOBAL f32* absmax, GLOBAL const T* src, u64 n, u32 block, Team team,
                     GROUP const i32* tree, GROUP u32* scratch) {
    u32 teams = t.threads / team.lanes;
    bool wide = team.wide;
    u64 count = (n + block - 1) / block;
    for (u64 first = (u64)t.block * teams; first < count; first += (u64)t.blocks * teams) {
        u64 b = first + t.local / team.lanes, lo = b * block;
        team.len = b < count ? (u32)least((u64)block, n - lo) : 0;
        team.wide = wide && team.len % 4 == 0;
        float x[SLOTS];
        UNROLL for (u32 j = 0; j < QUADS; j++) {
            Pack<T, 4> y = load(team, src + lo, j);
            UNROLL for (u32 k = 0; k < 4; k++) x[4 * j + k] = widen(y.x[k]);
        }
        float top = absmax_of<SLOTS>(t, team, x, scratch);
        if (team.lane == 0 && team.len > 0) absmax[b] = top;
        encode(team, codes + lo, x, top, tree);
    }
}

#define QUANTIZE(T)                                                                                                 \
    KERNEL(quant8_quantize_##T, 256, OPERAND(u8, codes, 0), OPERAND(f32, absmax, 1), OPERAND(const T, src, 2),      \
           PARAMS(QuantizeParams, p)) {                                                                             \
        SHARED(i32, tree, TREE);                                                                                    \
        SHARED(u32, scratch, GROUPS);                                                                               \
        Thread t = THREAD;                                                                                          \
        tree[t.local] = p.tree[t.local];                                                                            \
        sync_threads();                                                                                             \
        Team team = {t.local % p.lanes, p.lanes, 0, p.wide != 0, false};                                                   \
        quantize<T>(t, codes, absmax, src, p.n, p.block, team, tree, scratch);                                      \
    }
FOR_FLOATS(QUANTIZE)

// ---- dequantize: dst[i] = map[codes[i]]·absmax[i/block]. A thread takes packs
// of 16 bytes of the result, which lie in two blocks at most.

struct DequantizeParams {
    u64 n;
    u32 block;
    u32 wide; // all packs lie at multiples of their size
    f32 map[256];
};

template <class D>
DEVICE void dequantize(Thread t, GLOBAL D* dst, GLOBAL const u8* codes, GLOBAL const f32* absmax, u64 n, u32 block, u32 wide,
                       GROUP const f32* map) {
    const u32 per = 16 / sizeof(D);
    u32 tile = t.threads * per * FLIGHT;
    for (u64 start = (u64)t.block * tile; start < n; start += (u64)t.blocks * tile) {
        u64 first = start / block;
        u32 skip = (u32)(start - first * block), len = (u32)least((u64)tile, n - start);
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            u32 at = (j * t.threads + t.local) * per;
            if (at >= len) break;
            u32 b = (skip + at) / block, left = (b + 1) * block - (skip + at); // elements to the end of block b
            bool whole = wide && at + per <= len;
            Pack<u8, per> c = {};
            if (whole) c = *(GLOBAL const Pack<u8, per>*)(codes + start + at);
            UNROLL for (u32 k = 0; k < per; k++)
                if (!whole && at + k < len) c.x[k] = codes[start + at + k];
            float scale = absmax[first + b], next = left < per && at + left < len ? absmax[first + b + 1] : scale;
            Pack<D, per> y;
            UNROLL for (u32 k = 0; k < per; k++) y.x[k] = narrow<D>(map[c.x[k]] * (k < left ? scale : next));
            if (whole) *(GLOBAL Pack<D, per>*)(dst + start + at) = y;
            UNROLL for (u32 k = 0; k < per; k++)
                if (!whole && at + k < len) dst[start + at + k] = y.x[k];
        }
    }
}

#define DEQUANTIZE(D)                                                                                                   \
    KERNEL(quant8_dequantize_##D, 256, OPERAND(D, dst, 0), OPERAND(const u8, codes, 1), OPERAND(const f32, absmax, 2), \
           PARAMS(DequantizeParams, p)) {                                                                               \
        SHARED(f32, map, 256);                                                                                          \
        Thread t = THREAD;                                                                                              \
        map[t.local] = p.map[t.local];                                                                                  \
        sync_threads();                                                                                                 \
        dequantize<D>(t, dst, codes, absmax, p.n, p.block, p.wide, map);                                                \
    }
FOR_FLOATS(DEQUANTIZE)
