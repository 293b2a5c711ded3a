// Products of two matrices of one 16-bit type by matrix units. All rows of
// their memory start at multiples of 16 bytes. A block of 256 threads keeps two
// parts of each operand in block memory: it multiplies one while it loads the
// other.
#pragma once

// Part is SIDE lines of DEPTH steps of an operand in block memory. They lie as
// in the operand, in rows along the lines or across them; gaps of 16 bytes
// between the rows spread them over the banks.
template <class T, int SIDE, int DEPTH> struct Part {
    enum { ALONG = DEPTH + 8, ACROSS = SIDE + 8, SIZE = SIDE * ALONG > DEPTH * ACROSS ? SIDE * ALONG : DEPTH * ACROSS };

    static DEVICE_MEMBER u32 at(u32 line, u32 step, bool along) { return along ? line * ALONG + step : step * ACROSS + line; }

    // load begins to load 8 neighbours, thread number `self`'s, of the part from line
    // `first` of `lines` and step `from` of `steps`.
    static DEVICE_MEMBER void load(u32 self, GROUP T* to, GLOBAL const T* x, Strided s, u64 first, u64 lines, u64 from, u64 steps) {
        bool along = s.step == 1;
        u32 line = along ? self / (DEPTH / 8) : self % (SIDE / 8) * 8;
        u32 step = along ? self % (DEPTH / 8) * 8 : self / (SIDE / 8);
        u64 there = neighbours(first + line, lines, from + step, steps, along);
        GLOBAL const T* src = there ? x + (first + line) * s.line + (from + step) * s.step : x;
        GROUP T* dst = to + at(line, step, along);
        if (there == 0 || there >= 8) {
            copy_async(dst, src, there > 0);
            return;
        }
        for (u32 e = 0; e < 8; e++) dst[e] = T{0};
        for (u32 e = 0; e < there; e++) dst[e] = src[e];
    }
};

// units computes a tile of SIDE×SIDE, with warps in 2 rows of 4.
template <class T, int SIDE, int DEPTH>
DEVICE void units(Thread t, GLOBAL u8* c, GLOBAL const T* a, GLOBAL const T* b, GemmParams p, GROUP T* memory) {
    typedef Part<T, SIDE, DEPTH> Half;
    enum { ROWS = SIDE / 32, COLS = SIDE / 64, ACROSS = 2 * COLS, ALL = ROWS * ACROSS }; // a warp computes ROWS×COLS squares of 16×16
    Tile tile = tile_of(t.block, p.m, p.n, SIDE, SIDE);
    bool along_a = p.a.step == 1, along_b = p.b.step == 1;
    u32 warp = t.local / MATRIX_LANES, row = warp / 4 * (SIDE / 2), col = warp % 4 * (SIDE / 4);
    u32 stride_a = along_a ? Half::ALONG : Half::ACROSS, stride_b = along_b ? Half::ALONG : Half::ACROSS;
    Acc sum[ALL]; // by rows
    UNROLL for (u32 i = 0; i < ALL; i++) sum[i] = acc_zero();
    u32 now = 0;
    Half::load(t.local, memory, a, p.a, tile.row, p.m, 0, p.k);
    Half::load(t.local, memory + Half::SIZE, b, p.b, tile.col, p.n, 0, p.k);
    copy_async_commit();
    for (u64 from = 0; from < p.k; from += DEPTH) {
        copy_async_wait<0>();
        sync_threads();
        GROUP T* x = memory + now * 2 * Half::SIZE;
        GROUP T* y = x + Half::SIZE;
        now = 1 - now;
        GROUP T* next = memory + now * 2 * Half::SIZE;
        if (from + DEPTH < p.k) {
            Half::load(t.local, next, a, p.a, tile.row, p.m, from + DEPTH, p.k);
            Half::load(t.local, next + Half::SIZE, b, p.b, tile.col, p.n, from + DEPTH, p.k);
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

#define UNITS(T, SIDE, DEPTH)                                                                                    \
    KERNEL(gemm_units##SIDE##_##T, 256, OPERAND(u8, c, 0), OPERAND(const T, a, 1), OPERAND(const T, b, 2),       \
           PARAMS(GemmParams, p)) {                                                                              \
        SHARED(Wide16, memory, 4 * SIDE * (DEPTH + 8) / 8);                                                      \
        units<T, SIDE, DEPTH>(THREAD, c, a, b, p, (GROUP T*)memory);                                             \
    }
UNITS(f16, 64, 32)
UNITS(f16, 128, 16)
#if defined(SNUG_CUDA) || defined(SNUG_EMU) || __METAL_VERSION__ >= 310
UNITS(bf16, 64, 32)
UNITS(bf16, 128, 16)
#else // Metal has no bfloat before 3.1
#define PLAIN_UNITS(SIDE)                                                                                        \
    KERNEL(gemm_units##SIDE##_bf16, 256, OPERAND(u8, c, 0), OPERAND(const u8, a, 1), OPERAND(const u8, b, 2),    \
           PARAMS(GemmParams, p)) {                                                                              \
        SHARED(Quad, memory, 1024);                                                                              \
        Thread t = THREAD;                                                                                       \
        Tile tile = tile_of(t.block, p.m, p.n, SIDE, SIDE);                                                      \
        for (u32 row = 0; row < SIDE; row += 64)                                                                 \
            for (u32 col = 0; col < SIDE; col += 64)                                                             \
                plain<64, 64, 1>(t, Tile{tile.row + row, tile.col + col}, c, a, b, p, memory);                   \
    }
PLAIN_UNITS(64)
PLAIN_UNITS(128)
#endif
