// Activations in blocks of 32 that share a power of two: see internal/mx. Each
// kernel does what the Go function of its job does.
#pragma once
#include "elements.h"

enum : u32 { MX_BLOCK = 32, MX_LEAST = 7, MX_NAN = 255 };

struct Int8Params {
    u64 n;
    u32 wide; // codes and elements start at multiples of 16 bytes
    u32 unused;
};

// ---- pack: 32 neighbouring lanes have the elements of a block.

template <class T> DEVICE void pack_int8(Thread t, GLOBAL u8* codes, GLOBAL u8* scales, GLOBAL const T* x, u64 n) {
    u64 padded = (n + MX_BLOCK - 1) / MX_BLOCK * MX_BLOCK, step = (u64)t.blocks * t.threads;
    for (u64 i = (u64)t.block * t.threads + t.local; i < padded; i += step) {
        float v = i < n ? widen(x[i]) : 0;
        u32 largest = float_bits(v) & 0x7fffffffu;
        for (u32 d = MX_BLOCK / 2; d > 0; d /= 2) {
            u32 other = shuffle_xor(largest, d);
            largest = other > largest ? other : largest;
        }
        u32 s = largest >> 23;
        s = s < MX_LEAST ? MX_LEAST : s;
        if (t.local % MX_BLOCK == 0) scales[i / MX_BLOCK] = (u8)s;
        if (i >= n) continue;
        i32 q = 0;
        if (s != MX_NAN) {
            // The sum with 1.5·2^23 has the nearest integer in its lowest bits.
            q = (i32)(float_bits(v * bits_float((260 - s) << 23) + 12582912.0f) - 0x4b400000u);
            q = q > 127 ? 127 : q < -127 ? -127 : q;
        }
        codes[i] = (u8)q;
    }
}

#define PACK_INT8(T)                                                                                                 \
    KERNEL(pack_int8_##T, 256, OPERAND(u8, codes, 0), OPERAND(u8, scales, 1), OPERAND(const T, x, 2),          \
           PARAMS(Int8Params, p)) {                                                                                  \
        pack_int8(THREAD, codes, scales, x, p.n);                                                                    \
    }
FOR_FLOATS(PACK_INT8)

// ---- unpack

template <class T> struct UnpackInt8 {
    GLOBAL T* x;
    GLOBAL const u8* codes;
    GLOBAL const u8* scales;

    DEVICE_MEMBER T value(u8 code, u32 s) const {
        if (s == MX_NAN) return narrow<T>(bits_float(0x7fc00000u));
        u32 step = s < MX_LEAST ? 1u << (s + 16) : (s - 6) << 23; // of 2^(s-133), the former a subnormal number
        return narrow<T>((float)(i32)((code ^ 0x80u) - 0x80u) * bits_float(step));
    }

    // at does n elements of one block.
    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<u8, n> c = load_pack<n>(codes + i);
        u32 s = scales[i / MX_BLOCK];
        Pack<T, n> y;
        UNROLL for (int k = 0; k < n; k++) y.x[k] = value(c.x[k], s);
        store_pack<n>(x + i, y);
    }
};

#define UNPACK_INT8(T)                                                                                               \
    KERNEL(unpack_int8_##T, 256, OPERAND(T, x, 0), OPERAND(const u8, codes, 1), OPERAND(const u8, scales, 2),  \
           PARAMS(Int8Params, p)) {                                                                                  \
        UnpackInt8<T> op = {x, codes, scales};                                                                       \
        each<16 / sizeof(T)>(THREAD, p.n, p.wide, op);                                                               \
    }
FOR_FLOATS(UNPACK_INT8)
