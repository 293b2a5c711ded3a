// Steps of matrices of Adafactor, whose second moment is factors, and of Muon.
#pragma once
#include "squares.h"

// ---- sums of squares by rows and by columns, as doubles, each in the order of package
// optim: strips of a row by LANES partial sums, bands of a column row by row.

enum { LANES = 32, AHEAD = 4 }; // elements that a thread loads before it uses the first

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
    u32 skip; // whether what a step leaves alone counts as 0
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
        UNROLL for (u32 k = 0; k < AHEAD; k++) {
            x[k] = i + k < count ? element(g, q.g_type, at + (i + k) * apart) * q.scale : 0;
            if (q.skip && too_large(x[k])) x[k] = 0;
        }
        UNROLL for (u32 k = 0; k < AHEAD; k++) sum = double_sum(sum, double_of_wide(wide_square(x[k])));
    }
    return sum;
}

KERNEL(quant8_side_sums, 256, OPERAND(u64, sums, 0), OPERAND(const u8, g, 1), PARAMS(Sums, all)) {
    Thread t = THREAD;
    Sums q = all;
    u32 lanes = q.by_columns ? 1 : LANES, lane = t.local % lanes;
    u64 behind = q.by_columns ? q.strips * q.rows : 0, count = q.by_columns ? q.bands * q.cols : q.strips * q.rows;
    u64 side = q.by_columns ? q.cols : q.rows;
    for (u64 i = ((u64)t.block * t.threads + t.local) / lanes; i < count; i += (u64)t.blocks * t.threads / lanes) {
        u64 part = i / side, number = i - part * side; // the number of the row or column, in which strip or band
        u64 at, left;
        if (q.by_columns) {
            at = part * q.height * q.cols + number;
            left = least(q.height, q.rows - part * q.height);
        } else {
            at = number * q.cols + part * q.width + lane;
            u64 len = least(q.width, q.cols - part * q.width);
            left = lane < len ? (len - lane + LANES - 1) / LANES : 0;
        }
        u64 sum = squares_from(g, q, at, left, q.by_columns ? q.cols : LANES);
        for (u32 d = lanes / 2; d > 0; d /= 2) {
            u32 low = shuffle_xor((u32)sum, d), high = shuffle_xor((u32)(sum >> 32), d);
            sum = double_sum(sum, (u64)high << 32 | low);
        }
        if (lane == 0) sums[behind + i] = sum;
    }
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

#if defined(SNUG_CUDA)

// ---- factors: the means R of rows and C of columns after a step, and their roots, in double as package optim has them.

struct FactorsParams {
    u64 rows, cols, behind;         // sums before those of columns
    u64 add_rows, add_cols, least;  // doubles: what sums are multiplied by, and the least mean of R
    f32 keep;                       // of the means before the step
    u32 unused;
};

KERNEL(quant8_averages, 256, OPERAND(f32, both, 0), OPERAND(const f32, old, 1), OPERAND(const u64, sums, 2), PARAMS(FactorsParams, q)) {
    Thread t = THREAD;
    double add_rows = wide_of_double(q.add_rows).x, add_cols = wide_of_double(q.add_cols).x;
    for (u64 i = (u64)t.block * t.threads + t.local; i < q.rows + q.cols; i += (u64)t.blocks * t.threads) {
        u64 sum = i < q.rows ? sums[i] : sums[q.behind + i - q.rows];
        double added = (i < q.rows ? add_rows : add_cols) * wide_of_double(sum).x;
        float kept = q.keep * old[i];
        both[i] = kept + (float)added;
    }
}

DEVICE double double_root(double x) {
#if defined(__CUDA_ARCH__) && !defined(SNUG_EMU)
    return __dsqrt_rn(x);
#else
    return __builtin_sqrt(x);
#endif
}

// quant8_roots has the sum of R in every warp, by LANES partial sums.
KERNEL(quant8_roots, 256, OPERAND(f32, roots, 0), OPERAND(const f32, both, 1), PARAMS(FactorsParams, q)) {
    Thread t = THREAD;
    double sum = 0;
    for (u64 i = lane_of(t); i < q.rows; i += LANES) sum += (double)both[i];
    for (u32 d = LANES / 2; d > 0; d /= 2) {
        u64 bits = double_of_wide(Wide{sum});
        u32 low = shuffle_xor((u32)bits, d), high = shuffle_xor((u32)(bits >> 32), d);
        sum += wide_of_double((u64)high << 32 | low).x;
    }
    double mean = sum / (double)q.rows, least = wide_of_double(q.least).x;
    if (mean < least) mean = least;
    for (u64 i = (u64)t.block * t.threads + t.local; i < q.rows + q.cols; i += (u64)t.blocks * t.threads) {
        double x = (double)both[i];
        roots[i] = (float)(i < q.rows ? double_root(mean / x) : 1.0 / double_root(x));
    }
}

#endif

// ---- updates

// Updates is a gradient of which load_floats makes u.
struct Updates {
    GLOBAL const u8* g;
    GLOBAL const f32* roots; // of the rows, and behind them of the columns
    u64 rows, cols;          // 0 where the gradient is taken as it is
    f32 scale, limit;
    u32 skip; // makes NaN of what a step leaves alone
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
        float scaled = x.x[k] * m.scale;
        x.x[k] = m.skip && too_large(scaled) ? bits_float(0x7fc00000u) : scaled * root;
    }
    return x;
}

DEVICE Updates updates_of(GLOBAL const u8* g, GLOBAL const f32* roots, PRIVATE const Step& q) {
    return Updates{g, roots, q.sides.rows, q.sides.cols, q.factors.grad_scale, q.sides.limit, q.skip};
}

// ---- steps with momentum, see step.h.

KERNEL(quant8_factored8, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(u8, state, 2), OPERAND(const f32, roots, 3),
       PARAMS(Rule8Params, q)) {
    SHARED(Tables, tables, 1);
    SHARED(u32, scratch, GROUPS);
    Thread t = THREAD;
    Step step = q.step;
    FILL_TABLES(t, tables, q)
    rule_blocks<1>(t, p, updates_of(g, roots, step), state, step, tables, scratch);
}

KERNEL(quant8_factored4, THREADS4, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(u8, state, 2), OPERAND(const f32, roots, 3),
       PARAMS(Rule4Params, q)) {
    SHARED(Nibbles, tables, 1);
    SHARED(u32, scratch, THREADS4 / GROUP_LANES);
    Thread t = THREAD;
    Step step = q.step;
    FILL_NIBBLES(t, tables, q)
    rule_blocks<1>(t, p, updates_of(g, roots, step), state, step, tables, scratch);
}

KERNEL(quant8_factored_floats, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(u8, state, 2), OPERAND(const f32, roots, 3),
       PARAMS(FloatsParams, q)) {
    Step step = q.step;
    rule_floats<1>(THREAD, p, updates_of(g, roots, step), state, step, q);
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
    Team team = {t.local, t.threads, tile.len, q.wide && tile.in_chunk % 4 == 0, false};
    return Pair{team, tile.at, load_floats(team, p, q.p_type, tile.at, 0), load_floats(team, g, q.g_type, tile.at, 0)};
}

// quant8_subtract takes the gradient, or with the orthogonal matrix of Muon that as g and
// the gradient, of another type, as `raw`.
KERNEL(quant8_subtract, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(const f32, roots, 2), OPERAND(const u8, raw, 3),
       PARAMS(Step, q)) {
    Thread t = THREAD;
    Step step = q;
    Updates updates = updates_of(g, roots, step);
    u64 tiles = tiles_of(step.n, step.chunk, t.threads * 4);
    for (u64 i = t.block; i < tiles; i += t.blocks) {
        Pair x = pair_of(t, p, updates, step, i);
        Pack<f32, 4> seen = x.u;
        if (step.skip && step.factors.rule == MUON) seen = load_floats(x.team, raw, step.s_type, x.at, 0);
        u32 kept = 0;
        UNROLL for (u32 k = 0; k < 4; k++) {
            kept |= step.skip && too_large(step, seen.x[k]) ? 1u << k : 0;
            x.p.x[k] = x.p.x[k] * step.factors.pre - step.factors.size * x.u.x[k];
        }
        store_parameters(step, kept, x.team, p, x.at, 0, x.p);
    }
}

KERNEL(quant8_matrix_squares, 256, OPERAND(const u8, p, 0), OPERAND(const u8, g, 1), OPERAND(const f32, roots, 2), OPERAND(u64, pairs, 3),
       PARAMS(Step, q)) {
    SHARED(Squares, sums, 256);
    Thread t = THREAD;
    Step step = q;
    Updates updates = updates_of(g, roots, step);
    Squares sum = {wide_zero(), wide_zero()};
    u64 tiles = tiles_of(step.n, step.chunk, t.threads * 4);
    for (u64 i = t.block; i < tiles; i += t.blocks) {
        Pair x = pair_of(t, p, updates, step, i);
        UNROLL for (u32 k = 0; k < 4; k++) {
            float u = step.skip && too_large(step, x.u.x[k]) ? 0 : x.u.x[k];
            sum = both(sum, Squares{wide_square(x.p.x[k]), wide_square(u)});
        }
    }
    write_squares(t, pairs, sum, sums);
}
