// Kernels of package pack: masks of one bit an element. Bit i%8 of byte i/8
// stands for element i. Each does what the Go function of its job does.
#pragma once
#include "elements.h"
#include "int8.h"

// Group is the elements that a thread takes at a time: those of as many mask bytes
// as make at least 16 bytes of elements.
template <class T> struct Group {
    enum {
        bytes = sizeof(T) == 1 ? 2 : 1, // of the mask
        elements = 8 * bytes,
        per = 16 / sizeof(T), // elements of a pack
        packs = elements / per,
    };
};

// each_group calls f.group(i) for whole groups, when wide, and f.byte(b, count) for
// the other bytes of the mask, which stand for count elements from 8·b on. wide says
// that vectors start at multiples of 16 bytes and the mask at one of Group::bytes.
template <class T, class F> DEVICE void each_group(Thread t, u64 n, u32 wide, PRIVATE const F& f) {
    u64 begin = (u64)t.block * t.threads + t.local, step = (u64)t.blocks * t.threads;
    u64 groups = wide ? n / Group<T>::elements : 0;
    for (u64 i = begin; i < groups; i += step) f.group(i);
    for (u64 b = groups * Group<T>::bytes + begin; 8 * b < n; b += step) f.byte(b, (u32)least((u64)8, n - 8 * b));
}

template <class T> DEVICE u32 load_bits(GLOBAL const u8* mask, u64 group) {
    Pack<u8, Group<T>::bytes> m = load_pack<Group<T>::bytes>(mask + group * Group<T>::bytes);
    u32 bits = 0;
    UNROLL for (int k = 0; k < Group<T>::bytes; k++) bits |= (u32)m.x[k] << 8 * k;
    return bits;
}

// ---- pack: bit i says whether (x[i] << shift) − 1 is less than limit, in the
// arithmetic of W, which is the bits of an element

struct PackParams {
    u64 n;
    u32 shift, limit, wide, unused;
};

template <class W> struct PackOp {
    GLOBAL u8* mask;
    GLOBAL const W* x;
    u32 shift, limit;

    DEVICE_MEMBER u32 test(W w) const { return (u32)(W)(((u32)w << shift) - 1) < limit ? 1 : 0; }

    DEVICE_MEMBER void group(u64 i) const {
        GLOBAL const W* from = x + i * Group<W>::elements;
        u32 bits = 0;
        UNROLL for (int q = 0; q < Group<W>::packs; q++) {
            Pack<W, Group<W>::per> p = load_pack<Group<W>::per>(from + q * Group<W>::per);
            UNROLL for (int k = 0; k < Group<W>::per; k++) bits |= test(p.x[k]) << (q * Group<W>::per + k);
        }
        Pack<u8, Group<W>::bytes> m;
        UNROLL for (int k = 0; k < Group<W>::bytes; k++) m.x[k] = (u8)(bits >> 8 * k);
        store_pack<Group<W>::bytes>(mask + i * Group<W>::bytes, m);
    }

    DEVICE_MEMBER void byte(u64 b, u32 count) const {
        u32 bits = 0;
        for (u32 k = 0; k < count; k++) bits |= test(x[8 * b + k]) << k;
        mask[b] = (u8)bits;
    }
};

#define PACK(W)                                                                                            \
    KERNEL(pack_bits_##W, 256, OPERAND(u8, mask, 0), OPERAND(const W, x, 1), PARAMS(PackParams, p)) {     \
        PackOp<W> op = {mask, x, p.shift, p.limit};                                                        \
        each_group<W>(THREAD, p.n, p.wide, op);                                                            \
    }
PACK(u8)
PACK(u16)
PACK(u32)

// ---- unpack: dst[i] is the bits of one where bit i is set, else 0

struct UnpackParams {
    u64 n;
    u32 one, wide;
};

template <class W> struct UnpackOp {
    GLOBAL W* dst;
    GLOBAL const u8* mask;
    u32 one;

    DEVICE_MEMBER W value(u32 bits, u32 k) const { return (W)(bits >> k & 1 ? one : 0); }

    DEVICE_MEMBER void group(u64 i) const {
        GLOBAL W* to = dst + i * Group<W>::elements;
        u32 bits = load_bits<W>(mask, i);
        UNROLL for (int q = 0; q < Group<W>::packs; q++) {
            Pack<W, Group<W>::per> p;
            UNROLL for (int k = 0; k < Group<W>::per; k++) p.x[k] = value(bits, q * Group<W>::per + k);
            store_pack<Group<W>::per>(to + q * Group<W>::per, p);
        }
    }

    DEVICE_MEMBER void byte(u64 b, u32 count) const {
        for (u32 k = 0; k < count; k++) dst[8 * b + k] = value(mask[b], k);
    }
};

#define UNPACK(W)                                                                                              \
    KERNEL(unpack_bits_##W, 256, OPERAND(W, dst, 0), OPERAND(const u8, mask, 1), PARAMS(UnpackParams, p)) {   \
        UnpackOp<W> op = {dst, mask, p.one};                                                                   \
        each_group<W>(THREAD, p.n, p.wide, op);                                                                \
    }
UNPACK(u8)
UNPACK(u16)
UNPACK(u32)

// ---- apply: dx[i] = scale·dy[i] where bit i is set, else 0

struct ApplyParams {
    u64 n;
    f32 scale;
    u32 wide;
};

template <class T> struct ApplyOp {
    GLOBAL T* dx;
    GLOBAL const T* dy;
    GLOBAL const u8* mask;
    f32 scale;

    // value keeps the bits of y, also those of a NaN, when scale is 1.
    DEVICE_MEMBER T value(u32 bits, u32 k, T y) const {
        if (!(bits >> k & 1)) return narrow<T>(0.0f);
        if (scale == 1.0f) return y;
        return narrow<T>(scale * widen(y));
    }

    DEVICE_MEMBER void group(u64 i) const {
        u64 at = i * Group<T>::elements;
        u32 bits = load_bits<T>(mask, i);
        UNROLL for (int q = 0; q < Group<T>::packs; q++) {
            Pack<T, Group<T>::per> p = load_pack<Group<T>::per>(dy + at + q * Group<T>::per);
            UNROLL for (int k = 0; k < Group<T>::per; k++) p.x[k] = value(bits, q * Group<T>::per + k, p.x[k]);
            store_pack<Group<T>::per>(dx + at + q * Group<T>::per, p);
        }
    }

    DEVICE_MEMBER void byte(u64 b, u32 count) const {
        for (u32 k = 0; k < count; k++) dx[8 * b + k] = value(mask[b], k, dy[8 * b + k]);
    }
};

#define APPLY(T)                                                                                                     \
    KERNEL(apply_bits_##T, 256, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const u8, mask, 2),             \
           PARAMS(ApplyParams, p)) {                                                                                 \
        ApplyOp<T> op = {dx, dy, mask, p.scale};                                                                     \
        each_group<T>(THREAD, p.n, p.wide, op);                                                                      \
    }
FOR_FLOATS(APPLY)
