// Products of tiles of f16 or bf16 on matrix units, for rows of at most D = 64, 128
// or 256 elements, a multiple of 8, that start at multiples of 16 bytes; up to D
// they go on with 0. matrix.h says what a lane holds.
//
// A block is eight units of 32 threads. A unit holds 16 rows of its scores and
// sums, and the rows of one operand in fragments; the other operand comes through
// block memory by asynchronous copies. Weights are rounded to T before they are
// multiplied, and the matrix units cut sums off where a processor rounds them.
// hidden.h says what becomes of NaNs and infinities that the mask hides.
#pragma once
#include "logarithm.h"
#include "shape.h"

enum { UNIT_ROWS = 16, HALF_UNITS = 4, HALF_ROWS = HALF_UNITS * UNIT_ROWS };

DEVICE u32 unit_of(Thread t) { return t.local / MATRIX_LANES; }

// quick_exp2 is exp2_of within 2 units in the last place.
#if defined(__CUDA_ARCH__) && !defined(SNUG_EMU)
DEVICE float quick_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
DEVICE float quick_exp2(float x) { return exp2_of(x); }
#endif

// Pitch is the elements between rows in block memory: an odd multiple of 16
// bytes, for banks.
template <u32 D> struct Pitch { enum { value = D + 8 }; };

// Piece is the columns of rows of D elements that are in block memory at a time.
template <u32 D> struct Piece { enum { value = D < 128 ? D : 128 }; };

template <class T> DEVICE Rows<T> rows_from(Rows<T> x, u32 first) {
    return Rows<T>{x.at + first * x.stride, x.stride, x.n > first ? x.n - first : 0, x.dim};
}

template <class T> DEVICE Rows<T> columns_from(Rows<T> x, u32 first) {
    return Rows<T>{x.at + first, x.stride, x.n, x.dim > first ? x.dim - first : 0};
}

// copy_rows begins to copy D columns of N rows to block memory; what is not there is 0.
template <u32 D, u32 N, class T> DEVICE void copy_rows(Thread t, GROUP T* to, Rows<const T> x) {
    u32 column = t.local % (D / 8) * 8, n = column < x.dim ? x.n : 0;
    UNROLL for (u32 row = t.local / (D / 8); row < N; row += 256 / (D / 8)) {
        bool there = row < n;
        copy_async(to + row * Pitch<D>::value + column, x.at + (there ? row * x.stride + column : 0), there);
    }
}

// load_halves loads 16 rows for each unit: units 0 to 3 those of first, the others
// those of second. It begins and ends with all threads at one place.
template <u32 D, class T>
DEVICE void load_halves(Thread t, PRIVATE FragA<T>* a, GROUP T* room, Rows<const T> first, Rows<const T> second) {
    enum { W = Piece<D>::value };
    GROUP const T* rows = room + unit_of(t) % HALF_UNITS * UNIT_ROWS * Pitch<W>::value;
    for (u32 part = 0; part < 2; part++)
        UNROLL for (u32 from = 0; from < D; from += W) {
            sync_threads();
            copy_rows<W, HALF_ROWS>(t, room, columns_from(part == 0 ? first : second, from));
            copy_async_commit();
            copy_async_wait<0>();
            sync_threads();
            if (unit_of(t) / HALF_UNITS == part)
                UNROLL for (u32 k = 0; k < W / 16; k++) load_a(a[from / 16 + k], rows + 16 * k, Pitch<W>::value);
        }
    sync_threads();
}

template <u32 TILES> DEVICE void clear(PRIVATE Acc* s) {
    UNROLL for (u32 j = 0; j < TILES; j++) s[j] = acc_zero();
}

// unit_products adds to s the products of D columns of the unit's rows and of N rows
// in block memory.
template <u32 D, u32 N, class T>
DEVICE void unit_products(PRIVATE Acc* s, PRIVATE const FragA<T>* a, GROUP const T* rows) {
    UNROLL for (u32 k = 0; k < D / 16; k++)
        UNROLL for (u32 j = 0; j < N / 16; j++) {
            FragB<T> b[2];
            load_b_transposed(b, rows + 16 * j * Pitch<D>::value + 16 * k, Pitch<D>::value);
            multiply(s[2 * j], a[k], b[0]);
            multiply(s[2 * j + 1], a[k], b[1]);
        }
}

// unit_add adds to sums the products of weights and D columns of N rows in block
// memory, which has ROW columns of them.
template <u32 D, u32 N, u32 ROW, class T>
DEVICE void unit_add(PRIVATE Acc* sums, PRIVATE const Acc* weights, GROUP const T* rows) {
    UNROLL for (u32 k = 0; k < N / 16; k++) {
        FragA<T> a;
        acc_to_a(a, weights[2 * k], weights[2 * k + 1]);
        UNROLL for (u32 j = 0; j < D / 16; j++) {
            FragB<T> b[2];
            load_b(b, rows + 16 * k * Pitch<ROW>::value + 16 * j, Pitch<ROW>::value);
            multiply(sums[2 * j], a, b[0]);
            multiply(sums[2 * j + 1], a, b[1]);
        }
    }
}

// unit_store writes sums times a factor for each of the lane's two rows to the
// unit's rows of x, from number first on.
template <u32 D, class T>
DEVICE void unit_store(Thread t, PRIVATE const Acc* sums, float factor0, float factor1, Rows<T> x, u32 first) {
    u32 lane = matrix_lane(t);
    UNROLL for (u32 e = 0; e < 2; e++) {
        u32 row = first + acc_row(lane, e);
        float factor = e == 0 ? factor0 : factor1;
        if (row >= x.n) continue;
        GLOBAL u32* to = (GLOBAL u32*)(x.at + row * x.stride + acc_col(lane));
        UNROLL for (u32 j = 0; j < D / 8; j++)
            if (8 * j < x.dim) to[4 * j] = pair<T>(sums[j].x[2 * e] * factor, sums[j].x[2 * e + 1] * factor);
    }
}
