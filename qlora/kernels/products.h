// Products with 4-bit weights, whose elements are decoded on the way to block memory.
#pragma once
#include "codes.h"
#include "dequantize.h"
#include "product.h"

struct WeightShape {
    u32 shift; // a block has 2^shift elements, and 8 neighbours are of one block
    u32 wide;  // the codes start at a multiple of 16 bytes
    u32 twice; // double quantization
    f32 offset;
};

struct WeightParams {
    ProductParams product;
    WeightShape shape;
    f32 values[16];
    f32 map[256];
};

// Weight is W as the operand b of a product: its rows are lines of Wᵀ, or steps of W.
// With double quantization scales are nested, else they are absmax.
struct Weight {
    GLOBAL const u8* packed;
    GLOBAL const f32* scales;
    GLOBAL const u8* codes; // of absmax
    GROUP const f32* values;
    GROUP const f32* map;
    WeightShape shape;
    Strided s;

    // Raw is neighbours of one block on their way from memory, if they are there.
    struct Raw {
        u32 nibbles;
        u32 code; // of absmax
        f32 scale;
        bool there;
    };

    DEVICE_MEMBER void load_scale(PRIVATE Raw& raw, u64 at) const {
        u64 block = at >> shape.shift;
        raw.there = true;
        raw.scale = scales[shape.twice ? block / NESTED_BLOCK : block];
        if (shape.twice) raw.code = codes[block];
    }

    DEVICE_MEMBER float absmax(PRIVATE const Raw& raw) const {
        return shape.twice ? map[raw.code] * raw.scale + shape.offset : raw.scale;
    }

    // fetch begins to load 4 neighbours, as Dense does, and decode makes floats of them,
    // rounded to the type of the product.
    DEVICE_MEMBER Raw fetch(u64 at, u64 there) const {
        Raw raw = {0, 0, 0, false};
        if (there == 0) return raw;
        load_scale(raw, at);
        raw.nibbles = packed[at / 2] | (u32)packed[at / 2 + 1] << 8;
        return raw;
    }

    DEVICE_MEMBER Quad decode(Raw raw) const {
        Quad y = {{0, 0, 0, 0}};
        if (!raw.there) return y;
        float scale = absmax(raw);
        UNROLL for (u32 e = 0; e < 4; e++) {
            y.x[e] = values[code(raw.nibbles, e)] * scale;
            if (s.type != TYPE_F32) y.x[e] = widen16(narrow16(y.x[e], s.type), s.type);
        }
        return y;
    }
};

DEVICE Weight weight(GLOBAL const u8* packed, GLOBAL const f32* scales, GLOBAL const u8* codes, GROUP const f32* values,
                     GROUP const f32* map, WeightShape shape, Strided s) {
    return Weight{packed, scales, codes, values, map, shape, s};
}

#if defined(HAS_F16_UNITS)
// Weight16 is W as an operand of type T, 8 neighbours at a time, as Chunks is one.
template <class T> struct Weight16 {
    typedef Weight::Raw Raw;
    Weight w;
    Strided s;

    DEVICE_MEMBER void begin(PRIVATE Raw& raw, GROUP T*, u64 at, u64 there) const {
        raw.there = false;
        if (there == 0) return;
        w.load_scale(raw, at);
        raw.nibbles = w.shape.wide ? load_codes<true>(w.packed + at / 2) : load_codes<false>(w.packed + at / 2);
    }

    DEVICE_MEMBER void end(PRIVATE const Raw& raw, GROUP T* to) const {
        Wide16 y = {{0, 0, 0, 0}};
        if (raw.there) {
            float scale = w.absmax(raw);
            UNROLL for (u32 k = 0; k < 4; k++)
                y.word[k] = pair<T>(w.values[code(raw.nibbles, 2 * k)] * scale, w.values[code(raw.nibbles, 2 * k + 1)] * scale);
        }
        *(GROUP Wide16*)to = y;
    }
};
#endif

// PRODUCT makes an entry point with block memory of `room` elements of type ROOM. The
// name w is that of the weight.
#define PRODUCT(name, T, ROOM, room, ...)                                                                                     \
    KERNEL(name, 256, OPERAND(u8, c, 0), OPERAND(const T, a, 1), OPERAND(const u8, packed, 2), OPERAND(const f32, scales, 3), \
           OPERAND(const u8, codes, 4), PARAMS(WeightParams, p)) {                                                            \
        SHARED(ROOM, memory, room);                                                                                           \
        SHARED(f32, values, 16);                                                                                              \
        SHARED(f32, map, 256);                                                                                                \
        Thread t = THREAD;                                                                                                    \
        FILL16(values);                                                                                                       \
        map[t.local] = p.map[t.local];                                                                                        \
        sync_threads();                                                                                                       \
        Weight w = weight(packed, scales, codes, values, map, p.shape, p.product.b);                                          \
        __VA_ARGS__                                                                                                           \
    }

#define PRODUCT_PLAIN(name, ROWS, COLS, SLICES, quads) \
    PRODUCT(name, u8, Quad, quads,                     \
            plain<ROWS, COLS, SLICES>(t, tile_of(t.block, p.product.m, p.product.n, ROWS, COLS), c, dense(a, p.product.a), w, p.product, memory);)
PRODUCT_PLAIN(qlora_product_plain, 64, 64, 1, 1024)
PRODUCT_PLAIN(qlora_product_thin, 16, 32, 8, 1792)

#if defined(HAS_F16_UNITS)
#define PRODUCT_UNITS(T, SIDE, DEPTH)                                      \
    PRODUCT(qlora_product##SIDE##_##T, T, Wide16, UNITS_ROOM(SIDE, DEPTH), \
            Weight16<T> right = {w, w.s}; units<T, SIDE, DEPTH>(t, c, chunks(a, p.product.a), right, p.product, (GROUP T*)memory);)
PRODUCT_UNITS(f16, 64, 32)
PRODUCT_UNITS(f16, 128, 16)
#if defined(HAS_BF16_UNITS)
PRODUCT_UNITS(bf16, 64, 32)
PRODUCT_UNITS(bf16, 128, 16)
#else
#define PRODUCT_SQUARE(SIDE)                            \
    PRODUCT(qlora_product##SIDE##_bf16, u8, Quad, 1024, \
            plain_square<SIDE>(t, c, dense(a, p.product.a), w, p.product, memory);)
PRODUCT_SQUARE(64)
PRODUCT_SQUARE(128)
#endif
#endif
