// Steps of matrices of Adafactor, whose second moment is factors, and of Muon.
#pragma once
#include "squares.h"

// ---- sums of squares by rows and by columns, as doubles, each in the order of package
// optim: strips of a row by LANES partial sums, bands of a column row by row.

enum { LANES = 32, AHEAD = 8 }; // elements that a thread loads before it uses the first

// double_sum adds doubles that are 0 or normal numbers, not negative, and rounds to
// nearest even.
DEVICE u64 double_sum(u64 a, u64 b) {
#if defined(SNUG_CUDA)
    return double_of_wide(wide_sum(wide_of_double(a), wide_of_double(b)));
#else
    if (a < b) {
        u64 x = a;
        a = b;
        b = x;
    }
    u64 one = (u64)1 << 52;
    u32 exponent = (u32)(a >> 52), apart = exponent - (u32)(b >> 52);
    if (b == 0 || apart > 53) return a;
    u64 big = ((a & (one - 1)) | one) << 10, small = ((b & (one - 1)) | one) << 10, moved = small >> apart;
    u64 sum = big + moved;
    u32 carry = (u32)(sum >> 63), cut = 10 + carry;
    u64 kept = sum >> cut, lost = sum & (((u64)1 << cut) - 1), middle = (u64)1 << (cut - 1);
    if (moved << apart != small) lost |= 1;
    kept += lost > middle || (lost == middle && (kept & 1));
    return ((u64)(exponent + carry - 1) << 52) + kept; // the first bit of kept adds to the exponent
#endif
}

struct Sums {
    u64 rows, cols;
    u64 height, bands, width, strips; // rows of a band, columns of a strip
    u32 by_columns, g_type;
    f32 scale;
    u32 unused;
};

// element returns number i of a vector whose type has a number.
DEVICE float element(GLOBAL const u8* x, u32 dtype, u64 i) {
    if (dtype == 1) return ((GLOBAL const f32*)x)[i];
    u16 bits = ((GLOBAL const u16*)x)[i];
    return dtype == 2 ? widen(f16{bits}) : widen(bf16{bits});
}

// squares_from adds the squares of so many elements, of which the first is number `at`
// and each lies so far behind the one before.
DEVICE u64 squares_from(GLOBAL const u8* g, PRIVATE const Sums& q, u64 at, u64 count, u64 apart) {
    u64 sum = 0;
    for (u64 i = 0; i < count; i += AHEAD) {
        float x[AHEAD];
        UNROLL for (u32 k = 0; k < AHEAD; k++) x[k] = i + k < count ? element(g, q.g_type, at + (i + k) * apart) * q.scale : 0;
        UNROLL for (u32 k = 0; k < AHEAD; k++) sum = double_sum(sum, double_of_wide(wide_square(x[k])));
    }
    return sum;
}

DEVICE void sum_columns(Thread t, GLOBAL u64* sums, GLOBAL const u8* g, Sums q) {
    for (u64 i = (u64)t.block * t.threads + t.local; i < q.bands * q.cols; i += (u64)t.blocks * t.threads) {
        u64 band = i / q.cols, top = band * q.height;
        sums[q.strips * q.rows + i] = squares_from(g, q, top * q.cols + (i - band * q.cols), least(q.height, q.rows - top), q.cols);
    }
}

DEVICE void sum_rows(Thread t, GLOBAL u64* sums, GLOBAL const u8* g, Sums q) {
    u32 lane = t.local % LANES, groups = t.threads / LANES;
    for (u64 i = (u64)t.block * groups + t.local / LANES; i < q.strips * q.rows; i += (u64)t.blocks * groups) {
        u64 strip = i / q.rows, left = strip * q.width, len = least(q.width, q.cols - left);
        u64 mine = lane < len ? (len - lane + LANES - 1) / LANES : 0;
        u64 sum = squares_from(g, q, (i - strip * q.rows) * q.cols + left + lane, mine, LANES);
        for (u32 d = LANES / 2; d > 0; d /= 2) {
            u32 low = shuffle_xor((u32)sum, d), high = shuffle_xor((u32)(sum >> 32), d);
            sum = double_sum(sum, (u64)high << 32 | low);
        }
        if (lane == 0) sums[i] = sum;
    }
}

KERNEL(quant8_side_sums, 256, OPERAND(u64, sums, 0), OPERAND(const u8, g, 1), PARAMS(Sums, q)) {
    Thread t = THREAD;
    if (q.by_columns) sum_columns(t, sums, g, q);
    else sum_rows(t, sums, g, q);
}

// fold adds to sum 0 to n-1 the others, of which there are `count` behind one another.
DEVICE void fold(Thread t, GLOBAL u64* sums, u64 n, u64 count) {
    for (u64 i = (u64)t.block * t.threads + t.local; i < n; i += (u64)t.blocks * t.threads) {
        u64 sum = sums[i];
        for (u64 k = 1; k < count; k++) sum = double_sum(sum, sums[k * n + i]);
        sums[i] = sum;
    }
}

KERNEL(quant8_fold_sums, 256, OPERAND(u64, sums, 0), PARAMS(Sums, q)) {
    Thread t = THREAD;
    fold(t, sums, q.rows, q.strips);
    fold(t, sums + q.strips * q.rows, q.cols, q.bands);
}

// ---- updates

// Updates is a gradient of which load_floats makes u.
struct Updates {
    GLOBAL const u8* g;
    GLOBAL const f32* roots; // of the rows, and behind them of the columns
    u64 rows, cols;          // 0 for Muon, whose g is u
    f32 scale, limit;
};

DEVICE Pack<f32, 4> load_floats(Team team, Updates m, u32 dtype, u64 at, u32 j) {
    Pack<f32, 4> x = load_floats(team, m.g, dtype, at, j);
    if (m.cols == 0) return x;
    u64 row = 0, col = 0;
    UNROLL for (u32 k = 0; k < 4; k++) {
        u32 e = slot(team, 4 * j + k);
        if (e >= team.len) continue;
        if (k > 0 && team.wide) {
            if (++col == m.cols) col = 0, row++;
        } else {
            row = (at + e) / m.cols;
            col = at + e - row * m.cols;
        }
        float root = m.roots[row] * m.roots[m.rows + col];
        if (root > m.limit) root = m.limit;
        x.x[k] = x.x[k] * m.scale * root;
    }
    return x;
}

// Sides is what the parameters of these kernels end with.
struct Sides {
    u64 rows, cols;
    f32 limit;
    u32 unused;
};

struct Matrix {
    Step step;
    Sides sides;
};

struct Matrix8 {
    Rule8Params rule;
    Sides sides;
};

DEVICE Updates updates_of(GLOBAL const u8* g, GLOBAL const f32* roots, PRIVATE const Sides& s, float scale) {
    return Updates{g, roots, s.rows, s.cols, scale, s.limit};
}

KERNEL(quant8_matrix8, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(u8, state, 2), OPERAND(const f32, roots, 3),
       PARAMS(Matrix8, q)) {
    SHARED(Tables, tables, 1);
    SHARED(u32, scratch, GROUPS);
    Thread t = THREAD;
    Step step = q.rule.step;
    Sides sides = q.sides;
    FILL_TABLES(t, tables, q.rule)
    rule8<1>(t, p, updates_of(g, roots, sides, step.factors.grad_scale), state, step, tables, scratch);
}

KERNEL(quant8_matrix32, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(f32, state, 2), OPERAND(const f32, roots, 3),
       PARAMS(Matrix, q)) {
    Step step = q.step;
    Sides sides = q.sides;
    rule32<1>(THREAD, p, updates_of(g, roots, sides, step.factors.grad_scale), state, step);
}

// ---- steps without a state, and what they are measured by: of every tile of 4 elements
// a thread, the parameters and u.

struct Pair {
    Team team;
    u64 at;
    Pack<f32, 4> p, u;
};

DEVICE Pair pair_of(Thread t, GLOBAL const u8* p, Updates g, PRIVATE const Step& q, u64 i) {
    Tile tile = tile_of(q.n, q.chunk, 0, t.threads * 4, i);
    Team team = {t.local, t.threads, tile.len, q.wide && tile.in_chunk % 4 == 0};
    return Pair{team, tile.at, load_floats(team, p, q.p_type, tile.at, 0), load_floats(team, g, q.g_type, tile.at, 0)};
}

KERNEL(quant8_subtract, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(const f32, roots, 2), PARAMS(Matrix, q)) {
    Thread t = THREAD;
    Step step = q.step;
    Sides sides = q.sides;
    Updates updates = updates_of(g, roots, sides, step.factors.grad_scale);
    u64 tiles = tiles_of(step.n, step.chunk, t.threads * 4);
    for (u64 i = t.block; i < tiles; i += t.blocks) {
        Pair x = pair_of(t, p, updates, step, i);
        UNROLL for (u32 k = 0; k < 4; k++) x.p.x[k] = x.p.x[k] * step.factors.pre - step.factors.size * x.u.x[k];
        store_parameters(step, 0, x.team, p, x.at, 0, x.p);
    }
}

KERNEL(quant8_matrix_squares, 256, OPERAND(const u8, p, 0), OPERAND(const u8, g, 1), OPERAND(const f32, roots, 2), OPERAND(u64, pairs, 3),
       PARAMS(Matrix, q)) {
    SHARED(Squares, sums, 256);
    Thread t = THREAD;
    Step step = q.step;
    Sides sides = q.sides;
    Updates updates = updates_of(g, roots, sides, step.factors.grad_scale);
    Squares sum = {wide_zero(), wide_zero()};
    u64 tiles = tiles_of(step.n, step.chunk, t.threads * 4);
    for (u64 i = t.block; i < tiles; i += t.blocks) {
        Pair x = pair_of(t, p, updates, step, i);
        UNROLL for (u32 k = 0; k < 4; k++) sum = both(sum, Squares{wide_square(x.p.x[k]), wide_square(x.u.x[k])});
    }
    write_squares(t, pairs, sum, sums);
}
