// Products of matrices, c = alpha·a·b + beta·c, added in float. product_plain.h takes
// all types and strides, product_units.h uses matrix units. Kernels say where they have
// b from: memory, or what they make it of. Choose of package internal/gemm chooses.
#pragma once
#include "elements.h"

// Element types, as gpu.Type numbers them.
enum { TYPE_F32, TYPE_F16, TYPE_BF16 };

// Strided is a matrix of lines: the rows of a and c, the columns of b. The steps
// along the lines of a and b are the depth of the product.
struct Strided {
    u64 line, step; // elements from a line to the next, and within a line; one of them is 1
    u32 type;
    u32 wide; // whether groups of 4 neighbours of a or b, or 2 of a line of c, lie at multiples of their size
};

struct ProductParams {
    u64 m, n, k;
    Strided a, b, c;
    f32 alpha, beta;
};

// Tile is where the part of c begins that a block computes.
struct Tile { u64 row, col; };

// BAND is the number of rows of tiles that blocks go through together, so that
// those which run at a time share more of a and b in the cache.
enum { BAND = 8 };

DEVICE Tile tile_of(u32 block, u64 m, u64 n, u32 height, u32 width) {
    u64 rows = (m + height - 1) / height, cols = (n + width - 1) / width;
    u64 first = block / (BAND * cols) * BAND, inside = block % (BAND * cols), band = least(rows - first, (u64)BAND);
    return Tile{(first + inside % band) * height, inside / band * width};
}

// neighbours returns how many elements there are from an element on, in the
// direction in which they lie side by side: along its line, or to the next lines.
DEVICE u64 neighbours(u64 line, u64 lines, u64 step, u64 steps, bool along) {
    if (line >= lines || step >= steps) return 0;
    return along ? steps - step : lines - line;
}

// widen16 and narrow16 convert the bits of either 16-bit type.
DEVICE float widen16(u16 x, u32 type) { return type == TYPE_F16 ? widen(f16{x}) : widen(bf16{x}); }
DEVICE u16 narrow16(float x, u32 type) { return type == TYPE_F16 ? narrow<f16>(x).bits : narrow<bf16>(x).bits; }

DEVICE float element(GLOBAL const u8* x, u64 at, u32 type) {
    return type == TYPE_F32 ? ((GLOBAL const f32*)x)[at] : widen16(((GLOBAL const u16*)x)[at], type);
}

// set_pair sets two neighbours of a line, or the first of them.
template <class T> DEVICE void set_pair(GLOBAL T* c, u64 step, T x, T y, bool both, u32 wide) {
    if (both && wide) {
        store_pack<2>(c, Pack<T, 2>{{x, y}});
        return;
    }
    c[0] = x;
    if (both) c[step] = y;
}

// store finishes elements (row, col) and (row, col+1) of c, whose sums are x and
// y, as far as c has them. col is even.
DEVICE void store(GLOBAL u8* c, ProductParams p, u64 row, u64 col, float x, float y) {
    if (row >= p.m || col >= p.n) return;
    u64 at = row * p.c.line + col * p.c.step;
    bool both = col + 1 < p.n;
    u32 type = p.c.type;
    x *= p.alpha;
    y *= p.alpha;
    if (p.beta != 0) {
        x = fused_mul_add(p.beta, element(c, at, type), x);
        if (both) y = fused_mul_add(p.beta, element(c, at + p.c.step, type), y);
    }
    if (type == TYPE_F32) set_pair<f32>((GLOBAL f32*)c + at, p.c.step, x, y, both, p.c.wide);
    else set_pair<u16>((GLOBAL u16*)c + at, p.c.step, narrow16(x, type), narrow16(y, type), both, p.c.wide);
}

#include "product_plain.h"
#if defined(HAS_F16_UNITS)
#include "product_units.h"
#endif
