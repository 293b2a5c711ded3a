// Blockwise quantization to 4 bits.
#pragma once
#include "elements.h"
#include "table.h"

// ---- quantize: a team of threads, a power of two of them, takes one block at a
// time. Each has up to SLOTS elements of it, in quads: neighbours have neighbouring
// quads, so that accesses are whole lines and no byte of codes has two writers.

enum { SLOTS = 16, QUADS = SLOTS / 4 };
enum { GROUP_LANES = 32, GROUPS = 256 / GROUP_LANES }; // threads that shuffle, and how many such groups a block has

struct QuantizeParams {
    u64 n;
    u64 codes;        // by rank, the first in the lowest 4 bits
    u32 block, lanes; // elements of a block, threads of a team
    u32 wide, unused; // blocks lie at multiples of quads
    f32 limits[16];   // the tree of nibble.Format
};

struct Team {
    u32 lane, lanes; // this thread of how many
    u32 len;         // elements of the block, 0 for none
    bool wide;
};

template <class T> DEVICE Pack<T, 4> load_quad(Team team, GLOBAL const T* x, u32 at) {
    if (team.wide && at + 4 <= team.len) return load_pack<4>(x + at);
    Pack<T, 4> y = {};
    UNROLL for (u32 k = 0; k < 4; k++)
        if (at + k < team.len) y.x[k] = x[at + k];
    return y;
}

// team_max returns the largest x of the threads of a team. All threads of the
// block take part; scratch has GROUPS elements.
DEVICE u32 team_max(Thread t, Team team, u32 x, GROUP u32* scratch) {
    for (u32 d = least(team.lanes, (u32)GROUP_LANES) / 2; d > 0; d /= 2) x = greatest(x, shuffle_xor(x, d));
    if (team.lanes <= GROUP_LANES) return x;
    if (t.local % GROUP_LANES == 0) scratch[t.local / GROUP_LANES] = x;
    sync_threads();
    u32 groups = team.lanes / GROUP_LANES, first = t.local / team.lanes * groups;
    for (u32 g = 0; g < groups; g++) x = greatest(x, scratch[first + g]);
    sync_threads();
    return x;
}

// code_of returns the code of a quotient.
DEVICE u32 code_of(GROUP const f32* limits, u64 codes, float q) {
    u32 k = 1;
    UNROLL for (u32 level = 0; level < 4; level++) k = 2 * k + (q > limits[k]);
    return (u32)(codes >> (4 * (k - 16))) & 15;
}

// encode writes the codes of a block of which this thread has x. Where absmax is
// 0 or NaN they are that of 0, which is also what lies after the last.
DEVICE void encode(Team team, GLOBAL u8* packed, PRIVATE const float* x, float absmax, GROUP const f32* limits, u64 codes) {
    bool none = absmax == 0 || is_nan(absmax);
    UNROLL for (u32 j = 0; j < QUADS; j++) {
        u32 at = (j * team.lanes + team.lane) * 4;
        Pack<u8, 2> c;
        UNROLL for (u32 k = 0; k < 2; k++) {
            u32 first = code_of(limits, codes, none ? 0.0f : x[4 * j + 2 * k] / absmax);
            c.x[k] = (u8)(first << 4 | code_of(limits, codes, none ? 0.0f : x[4 * j + 2 * k + 1] / absmax));
        }
        if (team.wide && at + 4 <= team.len) {
            store_pack<2>(packed + at / 2, c);
            continue;
        }
        UNROLL for (u32 k = 0; k < 2; k++)
            if (at + 2 * k < team.len) packed[at / 2 + k] = c.x[k];
    }
}

template <class T>
DEVICE void quantize(Thread t, GLOBAL u8* packed, GLOBAL f32* absmax, GLOBAL const T* src, u64 n, u64 codes, u32 block, Team team,
                     GROUP const f32* limits, GROUP u32* scratch) {
    u32 teams = t.threads / team.lanes;
    u64 count = (n + block - 1) / block;
    for (u64 first = (u64)t.block * teams; first < count; first += (u64)t.blocks * teams) {
        u64 b = first + t.local / team.lanes, lo = b * block;
        team.len = b < count ? (u32)least((u64)block, n - lo) : 0;
        float x[SLOTS];
        u32 top = 0;
        UNROLL for (u32 j = 0; j < QUADS; j++) {
            Pack<T, 4> y = load_quad(team, src + lo, (j * team.lanes + team.lane) * 4);
            UNROLL for (u32 k = 0; k < 4; k++) {
                float v = widen(y.x[k]);
                x[4 * j + k] = v;
                top = greatest(top, float_bits(v) & 0x7fffffffu);
            }
        }
        top = team_max(t, team, top, scratch);
        float most = bits_float(top >= 0x7f800000u ? 0x7fc00000u : top); // NaN if not all of the block is finite
        if (team.lane == 0 && team.len > 0) absmax[b] = most;
        encode(team, packed + lo / 2, x, most, limits, codes);
    }
}

#define QUANTIZE(T)                                                                                              \
    KERNEL(qlora_quantize_##T, 256, OPERAND(u8, packed, 0), OPERAND(f32, absmax, 1), OPERAND(const T, src, 2),   \
           PARAMS(QuantizeParams, p)) {                                                                          \
        SHARED(f32, limits, 16);                                                                                 \
        SHARED(u32, scratch, GROUPS);                                                                            \
        Thread t = THREAD;                                                                                       \
        FILL16(limits);                                                                                          \
        sync_threads();                                                                                          \
        Team team = {t.local % p.lanes, p.lanes, 0, p.wide != 0};                                                \
        quantize<T>(t, packed, absmax, src, p.n, p.codes, p.block, team, limits, scratch);                       \
    }
FOR_FLOATS(QUANTIZE)
