// Attention for 16-bit types on compute capability 9.0: what its passes share.
//
// A block is a warpgroup that copies and others that multiply, 64 rows each. Tiles lie
// in block memory in boxes of 64 columns; where a tensor has no rows or columns, the copy
// gives 0. Rows that all of a block multiplies by stay; the others pass through a ring of
// two stages. A stage is full when its copies have arrived, and empty when every
// warp that multiplies has waited for its products of it; only then is it copied to again.
//
// Weights stay in registers: the fragments of results are those of operands. So block
// memory is written by copies alone, but for lse and delta, and products need no fence
// between what threads write and what they read.
//
// dq and dk, dv have kernels of their own, as in units_backward.h: that is 7 products in
// place of 5, but every sum has one owner and needs neither float32 room for dq in memory
// nor an order between blocks.
#pragma once
#include "units.h"

enum { STAGES = 2, GROUP_WARPS = GROUP_THREADS / 32 };

template <u32 D, u32 ROWS> struct Tile { enum : u32 { BOX = ROWS * BOX_ROW, BYTES = BOX * (D / BOX_COLUMNS) }; };

// copy_tile begins to copy D columns of rows from number `row` on, which may be before
// the first.
template <u32 D, u32 ROWS>
DEVICE void copy_tile(u32 to, const TensorMap& map, i32 row, u32 head, u32 batch, u32 barrier) {
    UNROLL for (u32 i = 0; i < D / BOX_COLUMNS; i++)
        copy_box(to + i * Tile<D, ROWS>::BOX, map, (i32)(i * BOX_COLUMNS), row, (i32)head, (i32)batch, barrier);
}

// multiply_rows begins c = a·bᵀ for 64 of the A_ROWS rows of a tile and the N of another.
template <class T, u32 D, u32 A_ROWS, u32 N> DEVICE void multiply_rows(float (&c)[N / 2], u32 a, u32 b) {
    UNROLL for (u32 k = 0; k < D / 16; k++) {
        u32 box = k / 4, column = k % 4 * 32; // 16 columns are 32 bytes
        multiply_shared<T, N>(c, by_rows(a + box * Tile<D, A_ROWS>::BOX + column), by_rows(b + box * Tile<D, N>::BOX + column), k > 0);
    }
    multiply_commit();
}

// add_rows begins c += w·x for the N rows of a tile x.
template <class T, u32 D, u32 N> DEVICE void add_rows(float (&c)[D / 2], const FragA<T> (&w)[N / 16], u32 x) {
    UNROLL for (u32 k = 0; k < N / 16; k++)
        multiply_registers<T, D>(c, w[k], by_columns(x + k * 16 * BOX_ROW, Tile<D, N>::BOX));
    multiply_commit();
}

// pack rounds results to T as the left operand of add_rows.
template <class T, u32 N> DEVICE void pack(FragA<T> (&w)[N / 16], const float (&x)[N / 2]) {
    UNROLL for (u32 k = 0; k < N / 16; k++)
        UNROLL for (u32 r = 0; r < 4; r++) w[k].x[r] = pair<T>(x[8 * k + 2 * r], x[8 * k + 2 * r + 1]);
}

template <u32 N> DEVICE void clear(float (&x)[N]) {
    UNROLL for (u32 i = 0; i < N; i++) x[i] = 0;
}

// ---- rings: the barriers of full stages, then those of empty ones

enum { RING_BYTES = 2 * STAGES * 8 };

DEVICE u32 full_of(u32 ring, u32 use) { return ring + use % STAGES * 8; }
DEVICE u32 empty_of(u32 ring, u32 use) { return ring + (STAGES + use % STAGES) * 8; }

DEVICE void ring_init(u32 ring, u32 arrivals, u32 warps) {
    UNROLL for (u32 i = 0; i < STAGES; i++) {
        barrier_init(full_of(ring, i), arrivals);
        barrier_init(empty_of(ring, i), warps);
    }
}

// wait_full waits for the copies of a use, number 0 and on, of a ring.
DEVICE void wait_full(u32 ring, u32 use) { barrier_wait(full_of(ring, use), use / STAGES % 2); }

// wait_empty waits until the use before of the same stage is done with; the first uses
// of the stages have none.
DEVICE void wait_empty(u32 ring, u32 use) { barrier_wait(empty_of(ring, use), (use / STAGES + 1) % 2); }

// release says that the warp is done with a use: its lanes have waited for their products
// and have read what they read, which sync_warp orders before the arrival.
DEVICE void release(Thread t, u32 ring, u32 use) {
    sync_warp();
    if (t.local % 32 == 0) barrier_arrive(empty_of(ring, use));
}

// ---- the lane's two rows

// group_of returns the number of the thread's warpgroup, the same for the warp.
DEVICE u32 group_of(Thread t) { return shuffle(t.local / GROUP_THREADS, 0); }

// row_in_group returns the lane's upper row of its group's 64; the lower one is 8 on.
DEVICE u32 row_in_group(Thread t) { return t.local % GROUP_THREADS / 32 * UNIT_ROWS + acc_row(matrix_lane(t), 0); }

// Span is which columns of results count for the two rows: lo to hi−1 of each.
struct Span { i32 lo[2], hi[2]; };

DEVICE bool counts(Span s, u32 h, u32 column) { return (i32)column >= s.lo[h] && (i32)column < s.hi[h]; }

// store_rows writes sums times a factor for each of the two rows to rows of x from
// number `row` on.
template <u32 D, class T> DEVICE void store_rows(Thread t, const float (&sums)[D / 2], float factor0, float factor1, Rows<T> x, u32 row) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 h = 0; h < 2; h++) {
        float factor = h == 0 ? factor0 : factor1;
        if (row + 8 * h >= x.n) continue;
        u32* to = (u32*)(x.at + (row + 8 * h) * x.stride + column);
        UNROLL for (u32 j = 0; j < D / 8; j++)
            if (8 * j < x.dim) to[4 * j] = pair<T>(sums[4 * j + 2 * h] * factor, sums[4 * j + 2 * h + 1] * factor);
    }
}
