// Products of matrices in memory.
#pragma once
#include "product.h"

// PLAIN makes an entry point with room for `quads` quads of block memory.
#define PLAIN(name, ROWS, COLS, SLICES, quads)                                                                            \
    KERNEL(name, 256, OPERAND(u8, c, 0), OPERAND(const u8, a, 1), OPERAND(const u8, b, 2), PARAMS(ProductParams, p)) {    \
        SHARED(Quad, memory, quads);                                                                                      \
        Thread t = THREAD;                                                                                                \
        plain<ROWS, COLS, SLICES>(t, tile_of(t.block, p.m, p.n, ROWS, COLS), c, dense(a, p.a), dense(b, p.b), p, memory); \
    }
PLAIN(gemm_plain, 64, 64, 1, 1024)
PLAIN(gemm_thin, 16, 32, 8, 1792)

#if defined(HAS_F16_UNITS)
#define UNITS(T, SIDE, DEPTH)                                                                              \
    KERNEL(gemm_units##SIDE##_##T, 256, OPERAND(u8, c, 0), OPERAND(const T, a, 1), OPERAND(const T, b, 2), \
           PARAMS(ProductParams, p)) {                                                                     \
        SHARED(Wide16, memory, UNITS_ROOM(SIDE, DEPTH));                                                   \
        units<T, SIDE, DEPTH>(THREAD, c, chunks(a, p.a), chunks(b, p.b), p, (GROUP T*)memory);             \
    }
UNITS(f16, 64, 32)
UNITS(f16, 128, 16)
#if defined(HAS_BF16_UNITS)
UNITS(bf16, 64, 32)
UNITS(bf16, 128, 16)
#else
#define PLAIN_UNITS(SIDE)                                                                                     \
    KERNEL(gemm_units##SIDE##_bf16, 256, OPERAND(u8, c, 0), OPERAND(const u8, a, 1), OPERAND(const u8, b, 2), \
           PARAMS(ProductParams, p)) {                                                                        \
        SHARED(Quad, memory, 1024);                                                                           \
        Thread t = THREAD;                                                                                    \
        plain_square<SIDE>(t, c, dense(a, p.a), dense(b, p.b), p, memory);                                    \
    }
PLAIN_UNITS(64)
PLAIN_UNITS(128)
#endif
#endif
