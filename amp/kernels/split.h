// float32 as two halves: a bfloat16, rounded to nearest with ties away from zero,
// and the signed 16 bits by which the float32's bits differ from it; see
// internal/half/split.go.
#pragma once
#include "elements.h"

struct Halves { u16 upper, rest; };

DEVICE float join_halves(Halves h) {
    u32 rest = (h.rest ^ 0x8000u) - 0x8000u; // with its sign
    return bits_float(((u32)h.upper << 16) + rest);
}

DEVICE Halves split_halves(float x) {
    u32 b = float_bits(x);
    if (is_nan(x)) return Halves{narrow<bf16>(x).bits, 0};
    return Halves{(u16)((b + 0x8000u) >> 16), (u16)b};
}

// Eight elements move as two packs of float32 and one of each half, 16 bytes
// each. at<8> loads all it needs before it stores.

struct Join {
    GLOBAL f32* w;
    GLOBAL const bf16* upper;
    GLOBAL const u16* rest;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        const int part = n < 4 ? n : 4; // of float32 in a pack
        Pack<bf16, n> high = load_pack<n>(upper + i);
        Pack<u16, n> low = load_pack<n>(rest + i);
        UNROLL for (int k = 0; k < n; k += part) {
            Pack<f32, part> x;
            UNROLL for (int l = 0; l < part; l++) x.x[l] = join_halves(Halves{high.x[k + l].bits, low.x[k + l]});
            store_pack<part>(w + i + k, x);
        }
    }
};

struct Split {
    GLOBAL const f32* w;
    GLOBAL bf16* upper;
    GLOBAL u16* rest;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        const int part = n < 4 ? n : 4;
        Pack<bf16, n> high;
        Pack<u16, n> low;
        UNROLL for (int k = 0; k < n; k += part) {
            Pack<f32, part> x = load_pack<part>(w + i + k);
            UNROLL for (int l = 0; l < part; l++) {
                Halves h = split_halves(x.x[l]);
                high.x[k + l] = bf16{h.upper};
                low.x[k + l] = h.rest;
            }
        }
        store_pack<n>(upper + i, high);
        store_pack<n>(rest + i, low);
    }
};

KERNEL(amp_join, 256, OPERAND(f32, w, 0), OPERAND(const bf16, upper, 1), OPERAND(const u16, rest, 2), PARAMS(Elements, p)) {
    Join op = {w, upper, rest};
    each<8>(THREAD, p.n, p.wide, op);
}

KERNEL(amp_split, 256, OPERAND(const f32, w, 0), OPERAND(bf16, upper, 1), OPERAND(u16, rest, 2), PARAMS(Elements, p)) {
    Split op = {w, upper, rest};
    each<8>(THREAD, p.n, p.wide, op);
}
