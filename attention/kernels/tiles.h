// Products of tiles of any element type and any row length in float32.
//
// 256 threads hold a 64×64 tile of scores, 4×4 a thread, and sums of 64×128.
// The thread at (y, x) of 16×16 holds rows 4y to 4y+3, columns x, x+16, x+32 and
// x+48 of scores, and columns 4x to 4x+3 and 4x+64 to 4x+67 of sums. Threads of
// equal y, a half of a warp of 32, hold all of a row.
#pragma once
#include "shape.h"

enum {
    THREADS = 256,
    TILE = 64,        // queries, and keys
    DEPTH = 32,       // elements of rows that are multiplied at a time
    PITCH = 36,       // floats between rows of DEPTH, for banks
    PIECE = 16,       // rows that are added at a time
    WIDTH = 128,      // columns of sums; more are for other blocks
    WEIGHT_PITCH = 68 // floats between rows of TILE, for banks
};

// Quad is four floats that move in one access.
struct alignas(16) Quad { f32 x[4]; };

enum {
    WEIGHT_QUADS = TILE * WEIGHT_PITCH / 4,
    ROOM = WEIGHT_QUADS + PIECE * WIDTH / 4 // quads of block memory: more than two tiles of DEPTH
};

DEVICE u32 row_at(Thread t) { return t.local / 16 * 4; }
DEVICE u32 column_at(Thread t) { return t.local % 16; }

struct Scores { f32 x[4][4]; };
struct Sums { f32 x[4][8]; };

DEVICE void clear(PRIVATE Sums& s) {
    UNROLL for (u32 r = 0; r < 4; r++)
        UNROLL for (u32 c = 0; c < 8; c++) s.x[r][c] = 0;
}

// Range is the columns lo to hi-1.
struct Range { u32 lo, hi; };
DEVICE bool has(Range r, u32 column) { return column >= r.lo && column < r.hi; }

// Seen is which scores of the thread's rows count: those that the mask lets
// through. Others must not reach sums, not even times 0, which would make NaN of
// an infinity.
struct Seen { Range row[4]; };

// common returns the columns that all rows see, and covers says whether they have
// four columns from `at` on.
DEVICE Range common(Seen seen) {
    Range r = {0, TILE};
    UNROLL for (u32 i = 0; i < 4; i++) r.lo = greatest(r.lo, seen.row[i].lo), r.hi = least(r.hi, seen.row[i].hi);
    return r;
}
DEVICE bool covers(Range r, u32 at) { return at >= r.lo && at + 4 <= r.hi; }

// SeenBits is Seen where that is not a range: bit c of a row is its column c.
struct SeenBits { u64 row[4]; };

DEVICE bool has(u64 bits, u32 column) { return (bits >> column & 1) != 0; }
DEVICE u64 common(SeenBits seen) { return seen.row[0] & seen.row[1] & seen.row[2] & seen.row[3]; }
DEVICE bool covers(u64 bits, u32 at) { return (bits >> at & 15) == 15; }

// stage fills n rows of `width` columns in block memory with columns from `from` on
// of rows from `first` on, and with 0 where there are none.
template <u32 N, u32 COLUMNS, u32 STRIDE, class T>
DEVICE void stage(Thread t, GROUP Quad* room, Rows<const T> x, u32 first, u32 from) {
    GROUP f32* to = (GROUP f32*)room;
    u32 column = t.local % COLUMNS;
    UNROLL for (u32 i = 0; i < N; i += THREADS / COLUMNS) {
        u32 row = i + t.local / COLUMNS;
        bool there = first + row < x.n && from + column < x.dim;
        to[row * STRIDE + column] = there ? widen(x.at[(first + row) * x.stride + from + column]) : 0;
    }
}

// products sets s to the products of rows of a and rows of b.
template <class A, class B>
DEVICE void products(Thread t, PRIVATE Scores& s, GROUP Quad* room, A a, B b) {
    GROUP Quad* left = room + row_at(t) * (PITCH / 4);
    GROUP Quad* right = room + (TILE + column_at(t)) * (PITCH / 4);
    s = Scores{};
    for (u32 d = 0; d < a.dim; d += DEPTH) {
        sync_threads(); // all have read what was there
        stage<TILE, DEPTH, PITCH>(t, room, a, 0, d);
        stage<TILE, DEPTH, PITCH>(t, room + TILE * PITCH / 4, b, 0, d);
        sync_threads();
        u32 quads = (least(a.dim - d, (u32)DEPTH) + 3) / 4;
        for (u32 i = 0; i < quads; i++) {
            Quad x[4], y[4];
            UNROLL for (u32 r = 0; r < 4; r++) {
                x[r] = left[r * (PITCH / 4) + i];
                y[r] = right[r * 16 * (PITCH / 4) + i];
            }
            UNROLL for (u32 e = 0; e < 4; e++)
                UNROLL for (u32 r = 0; r < 4; r++)
                    UNROLL for (u32 c = 0; c < 4; c++) s.x[r][c] = fused_mul_add(x[r].x[e], y[c].x[e], s.x[r][c]);
        }
    }
}

// add_quad adds the products of four weights of each row and four rows of a piece;
// with MASKED only those that count.
template <bool MASKED, class S>
DEVICE void add_quad(PRIVATE Sums& sums, GROUP const Quad* weights, GROUP const Quad* piece, S seen, u32 at, u32 columns) {
    Quad w[4];
    UNROLL for (u32 r = 0; r < 4; r++) w[r] = weights[r * (WEIGHT_PITCH / 4)];
    UNROLL for (u32 e = 0; e < 4; e++)
        UNROLL for (u32 side = 0; side < 2; side++) {
            if (side * (WIDTH / 2) >= columns) continue;
            Quad y = piece[e * (WIDTH / 4) + side * (WIDTH / 8)];
            UNROLL for (u32 r = 0; r < 4; r++) {
                if (MASKED && !has(seen.row[r], at + e)) continue;
                UNROLL for (u32 c = 0; c < 4; c++)
                    sums.x[r][4 * side + c] = fused_mul_add(w[r].x[e], y.x[c], sums.x[r][4 * side + c]);
            }
        }
}

// add adds to sums the weights, 0 where they do not count, times columns from `from`
// on of the rows x.
template <class S, class X>
DEVICE void add(Thread t, PRIVATE Sums& sums, GROUP Quad* room, PRIVATE const Scores& weights, S seen, X x, u32 from) {
    u32 y = row_at(t);
    auto all = common(seen);
    sync_threads(); // all have read what was there
    UNROLL for (u32 r = 0; r < 4; r++)
        UNROLL for (u32 c = 0; c < 4; c++)
            ((GROUP f32*)room)[(y + r) * WEIGHT_PITCH + column_at(t) + 16 * c] = weights.x[r][c];
    GROUP Quad *weight = room + y * (WEIGHT_PITCH / 4), *piece = room + WEIGHT_QUADS;
    u32 skip = 4 * column_at(t), columns = least(x.dim - from, (u32)WIDTH);
    columns = columns > skip ? columns - skip : 0; // from the thread's first on
    for (u32 k = 0; k < x.n; k += PIECE) {
        if (k > 0) sync_threads();
        stage<PIECE, WIDTH, WIDTH>(t, piece, x, k, from);
        sync_threads();
        for (u32 i = k; i < k + PIECE; i += 4) {
            GROUP const Quad* rows = piece + (i - k) * (WIDTH / 4) + column_at(t);
            if (covers(all, i)) add_quad<false>(sums, weight + i / 4, rows, seen, i, columns);
            else add_quad<true>(sums, weight + i / 4, rows, seen, i, columns);
        }
    }
}

// store writes sums, times a factor for each row, to columns from `from` on of x.
template <class T> DEVICE void store(Thread t, PRIVATE const Sums& sums, Quad factor, Rows<T> x, u32 from) {
    UNROLL for (u32 r = 0; r < 4; r++)
        UNROLL for (u32 c = 0; c < 8; c++) {
            u32 row = row_at(t) + r, column = from + column_at(t) * 4 + c / 4 * (WIDTH / 2) + c % 4;
            if (row < x.n && column < x.dim) x.at[row * x.stride + column] = narrow<T>(sums.x[r][c] * factor.x[r]);
        }
}
