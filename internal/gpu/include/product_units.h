// Products of two matrices of one 16-bit type by matrix units. Rows of operands in
// memory start at multiples of 16 bytes. A block of 256 threads keeps two parts of each
// operand in block memory: it multiplies one while it loads or makes the other.
#pragma once

// UNITS_ROOM is the block memory of units, in 16 bytes.
#define UNITS_ROOM(SIDE, DEPTH) (4 * SIDE * (DEPTH + 8) / 8)

// Chunks is an operand in memory.
template <class T> struct Chunks {
    struct Raw {};
    GLOBAL const T* x;
    Strided s;

    // begin begins to copy 8 neighbours from element `at` on to block memory, zeros for
    // those that are not there.
    DEVICE_MEMBER void begin(PRIVATE Raw&, GROUP T* to, u64 at, u64 there) const {
        GLOBAL const T* from = there ? x + at : x;
        if (there == 0 || there >= 8) {
            copy_async(to, from, there > 0);
            return;
        }
        for (u32 e = 0; e < 8; e++) to[e] = T{0};
        for (u32 e = 0; e < there; e++) to[e] = from[e];
    }

    // end finishes what has not been copied.
    DEVICE_MEMBER void end(PRIVATE const Raw&, GROUP T*) const {}
};

template <class T> DEVICE Chunks<T> chunks(GLOBAL const T* x, Strided s) { return Chunks<T>{x, s}; }

// Part is SIDE lines of DEPTH steps of an operand in block memory. They lie as
// in the operand, in rows along the lines or across them; gaps of 16 bytes
// between the rows spread them over the banks. Thread number `self` brings 8
// neighbours of it, from Chunks or something like it.
template <class T, int SIDE, int DEPTH> struct Part {
    enum { ALONG = DEPTH + 8, ACROSS = SIDE + 8, SIZE = SIDE * ALONG > DEPTH * ACROSS ? SIDE * ALONG : DEPTH * ACROSS };

    static DEVICE_MEMBER u32 at(u32 line, u32 step, bool along) { return along ? line * ALONG + step : step * ACROSS + line; }
    static DEVICE_MEMBER u32 line(u32 self, bool along) { return along ? self / (DEPTH / 8) : self % (SIDE / 8) * 8; }
    static DEVICE_MEMBER u32 step(u32 self, bool along) { return along ? self % (DEPTH / 8) * 8 : self / (SIDE / 8); }

    // begin begins to bring the part from line `first` of `lines` and step `from` of
    // `steps`.
    template <class S>
    static DEVICE_MEMBER void begin(u32 self, GROUP T* to, PRIVATE const S& source, PRIVATE typename S::Raw& raw, u64 first, u64 lines,
                                    u64 from, u64 steps) {
        Strided s = source.s;
        bool along = s.step == 1;
        u32 l = line(self, along), d = step(self, along);
        u64 there = neighbours(first + l, lines, from + d, steps, along);
        source.begin(raw, to + at(l, d, along), (first + l) * s.line + (from + d) * s.step, there);
    }

    template <class S> static DEVICE_MEMBER void end(u32 self, GROUP T* to, PRIVATE const S& source, PRIVATE const typename S::Raw& raw) {
        bool along = source.s.step == 1;
        source.end(raw, to + at(line(self, along), step(self, along), along));
    }
};

// units computes a tile of SIDE×SIDE, with warps in 2 rows of 4.
template <class T, int SIDE, int DEPTH, class B>
DEVICE void units(Thread t, GLOBAL u8* c, Chunks<T> a, B b, ProductParams p, GROUP T* memory) {
    typedef Part<T, SIDE, DEPTH> Half;
    enum { ROWS = SIDE / 32, COLS = SIDE / 64, ACROSS = 2 * COLS, ALL = ROWS * ACROSS }; // a warp computes ROWS×COLS squares of 16×16
    Tile tile = tile_of(t.block, p.m, p.n, SIDE, SIDE);
    bool along_a = a.s.step == 1, along_b = b.s.step == 1;
    u32 warp = t.local / MATRIX_LANES, row = warp / 4 * (SIDE / 2), col = warp % 4 * (SIDE / 4);
    u32 stride_a = along_a ? Half::ALONG : Half::ACROSS, stride_b = along_b ? Half::ALONG : Half::ACROSS;
    Acc sum[ALL]; // by rows
    UNROLL for (u32 i = 0; i < ALL; i++) sum[i] = acc_zero();
    u32 now = 0;
    typename Chunks<T>::Raw raw_a;
    typename B::Raw raw_b;
    Half::begin(t.local, memory, a, raw_a, tile.row, p.m, 0, p.k);
    Half::begin(t.local, memory + Half::SIZE, b, raw_b, tile.col, p.n, 0, p.k);
    copy_async_commit();
    Half::end(t.local, memory + Half::SIZE, b, raw_b);
    for (u64 from = 0; from < p.k; from += DEPTH) {
        copy_async_wait<0>();
        sync_threads();
        GROUP T* x = memory + now * 2 * Half::SIZE;
        GROUP T* y = x + Half::SIZE;
        now = 1 - now;
        GROUP T* next = memory + now * 2 * Half::SIZE;
        if (from + DEPTH < p.k) {
            Half::begin(t.local, next, a, raw_a, tile.row, p.m, from + DEPTH, p.k);
            Half::begin(t.local, next + Half::SIZE, b, raw_b, tile.col, p.n, from + DEPTH, p.k);
        }
        copy_async_commit();
        UNROLL for (u32 d = 0; d < DEPTH; d += 16) {
            FragA<T> left[ROWS];
            UNROLL for (u32 i = 0; i < ROWS; i++) {
                GROUP const T* at = x + Half::at(row + 16 * i, d, along_a);
                if (along_a) load_a(left[i], at, stride_a);
                else load_a_transposed(left[i], at, stride_a);
            }
            UNROLL for (u32 j = 0; j < COLS; j++) {
                FragB<T> right[2];
                GROUP const T* at = y + Half::at(col + 16 * j, d, along_b);
                if (along_b) load_b_transposed(right, at, stride_b);
                else load_b(right, at, stride_b);
                UNROLL for (u32 i = 0; i < ROWS; i++)
                    UNROLL for (u32 e = 0; e < 2; e++) multiply(sum[i * ACROSS + 2 * j + e], left[i], right[e]);
            }
        }
        if (from + DEPTH < p.k) Half::end(t.local, next + Half::SIZE, b, raw_b);
    }
    sync_threads();
    enum { WIDTH = SIDE / 4 };
    GROUP float* strip = (GROUP float*)memory + warp * 16 * WIDTH;
    u32 lane = matrix_lane(t);
    UNROLL for (u32 i = 0; i < ROWS; i++) {
        UNROLL for (u32 j = 0; j < ACROSS; j++)
            UNROLL for (u32 e = 0; e < 4; e++)
                strip[acc_row(lane, e / 2) * WIDTH + 8 * j + acc_col(lane) + e % 2] = sum[i * ACROSS + j].x[e];
        sync_warp();
        for (u32 e = lane * 2; e < 16 * WIDTH; e += MATRIX_LANES * 2)
            store(c, p, tile.row + row + 16 * i + e / WIDTH, tile.col + col + e % WIDTH, strip[e], strip[e + 1]);
        sync_warp();
    }
}
