// float32 as a bfloat16 and 8 bits more: its upper 24 bits, rounded to nearest even or at
// random, and those rounded to nearest with ties away from zero; see
// internal/half/split24.go.
#pragma once
#include "elements.h"
#include "random.h"

struct Parts24 { u16 upper; u8 rest; };

DEVICE float join_24(u16 upper, u8 rest) {
    u32 low = ((u32)rest ^ 0x80u) - 0x80u; // with its sign
    return bits_float(((u32)upper << 16) + (low << 8));
}

// parts_24 takes the upper 24 of the bits b apart, to which x is rounded.
DEVICE Parts24 parts_24(float x, u32 b) {
    if (is_nan(x)) return Parts24{narrow<bf16>(x).bits, 0};
    return Parts24{(u16)((b + 0x8000u) >> 16), (u8)(b >> 8)};
}

DEVICE Parts24 split_24(float x) {
    u32 b = float_bits(x);
    return parts_24(x, b + 0x7fu + (b >> 8 & 1u));
}

DEVICE Parts24 split_24_at_random(float x, u32 draw) { return parts_24(x, float_bits(x) + (draw >> 8)); }

// Eight elements move as two packs of float32, one of bfloat16 and 8 bytes.

struct Join24 {
    GLOBAL f32* w;
    GLOBAL const bf16* upper;
    GLOBAL const u8* rest;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        const int part = n < 4 ? n : 4; // of float32 in a pack
        Pack<bf16, n> high = load_pack<n>(upper + i);
        Pack<u8, n> low = load_pack<n>(rest + i);
        UNROLL for (int k = 0; k < n; k += part) {
            Pack<f32, part> x;
            UNROLL for (int l = 0; l < part; l++) x.x[l] = join_24(high.x[k + l].bits, low.x[k + l]);
            store_pack<part>(w + i + k, x);
        }
    }
};

struct Split24 {
    GLOBAL const f32* w;
    GLOBAL bf16* upper;
    GLOBAL u8* rest;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        const int part = n < 4 ? n : 4;
        Pack<bf16, n> high;
        Pack<u8, n> low;
        UNROLL for (int k = 0; k < n; k += part) {
            Pack<f32, part> x = load_pack<part>(w + i + k);
            UNROLL for (int l = 0; l < part; l++) {
                Parts24 h = split_24(x.x[l]);
                high.x[k + l] = bf16{h.upper};
                low.x[k + l] = h.rest;
            }
        }
        store_pack<n>(upper + i, high);
        store_pack<n>(rest + i, low);
    }
};

KERNEL(amp_join24, 256, OPERAND(f32, w, 0), OPERAND(const bf16, upper, 1), OPERAND(const u8, rest, 2), PARAMS(Elements, p)) {
    Join24 op = {w, upper, rest};
    each<8>(THREAD, p.n, p.wide, op);
}

KERNEL(amp_split24, 256, OPERAND(const f32, w, 0), OPERAND(bf16, upper, 1), OPERAND(u8, rest, 2), PARAMS(Elements, p)) {
    Split24 op = {w, upper, rest};
    each<8>(THREAD, p.n, p.wide, op);
}

// ---- at random, by the upper 8 bits of the 16-bit half number first + i of a stream. A thread
// takes the 8 elements of one Philox block at a time.

struct Random24Params {
    u64 n, seed, tensor, first;
    u32 wide, unused; // whole groups of 8 lie at multiples of 16 bytes, those of rest of 8
};

KERNEL(amp_split24_random, 256, OPERAND(const f32, w, 0), OPERAND(bf16, upper, 1), OPERAND(u8, rest, 2), PARAMS(Random24Params, p)) {
    Thread t = THREAD;
    u32 skip = (u32)(p.first % 8); // halves of the first block that come before
    u64 groups = (p.n + skip + 7) / 8, step = (u64)t.blocks * t.threads;
    for (u64 i = (u64)t.block * t.threads + t.local; i < groups; i += step) {
        Words4 r = philox(p.seed, p.tensor, p.first / 8 + i);
        i64 at = (i64)(i * 8) - skip;
        if (p.wide && at >= 0 && at + 8 <= (i64)p.n) {
            f32 x[8];
            load_eight(x, w + at);
            Pack<bf16, 8> high;
            Pack<u8, 8> low;
            UNROLL for (u32 k = 0; k < 8; k++) {
                Parts24 h = split_24_at_random(x[k], half_of(r, k));
                high.x[k] = bf16{h.upper};
                low.x[k] = h.rest;
            }
            store_pack<8>(upper + at, high);
            store_pack<8>(rest + at, low);
            continue;
        }
        UNROLL for (u32 k = 0; k < 8; k++) {
            i64 j = at + k;
            if (j < 0 || j >= (i64)p.n) continue;
            Parts24 h = split_24_at_random(w[j], half_of(r, k));
            upper[j] = bf16{h.upper};
            rest[j] = h.rest;
        }
    }
}
