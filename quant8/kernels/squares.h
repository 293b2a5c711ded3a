// The sums of squares that trust ratios are made of.
#pragma once
#include "step.h"
#include "wide.h"

// Squares are those of the parameter, and of the u of LAMB and of ADAFACTOR or of LARS's
// gradient.
struct Squares { Wide parameter, update; };

DEVICE Squares both(Squares a, Squares b) {
    return Squares{wide_sum(a.parameter, b.parameter), wide_sum(a.update, b.update)};
}

// square adds one element. What a step would leave alone has no update.
DEVICE void square(PRIVATE Squares& sum, PRIVATE const Step& q, float p, float g, States<2> s) {
    float u = g * q.factors.grad_scale;
    if (q.skip && too_large(q, g)) u = 0;
    else if (q.factors.rule == LAMB) u = direction(q.factors, p, g, s);
    else if (q.factors.rule != LARS) {
        float v = q.factors.rule == ADAFACTOR ? s.x[0] : s.x[1];
        u = u / divisor(q.factors, q.factors.beta2 * v + q.factors.rest2 * u * u);
    }
    sum = both(sum, Squares{wide_square(p), wide_square(u)});
}

// states_of returns how many states count in the squares; LARS's one does not.
DEVICE u32 states_of(u32 rule) { return rule == LARS ? 0 : rule == ADAFACTOR ? 1 : 2; }

// write_squares adds the sums of the threads of a block, which all call it, and
// writes those of block b to pair number b, as doubles.
DEVICE void write_squares(Thread t, GLOBAL u64* pairs, Squares mine, GROUP Squares* sums) {
    sums[t.local] = mine;
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) sums[t.local] = both(sums[t.local], sums[t.local + d]);
    }
    if (t.local > 0) return;
    pairs[2 * t.block] = double_of_wide(sums[0].parameter);
    pairs[2 * t.block + 1] = double_of_wide(sums[0].update);
}

// ---- 8 bits: a team of threads takes one block at a time.

DEVICE Squares squares8(Thread t, GLOBAL const u8* p, GLOBAL const u8* g, GLOBAL const u8* state, Step q, GROUP const Tables* tables) {
    Squares sum = {wide_zero(), wide_zero()};
    u32 count = states_of(q.factors.rule);
    u32 teams = t.threads / q.lanes, blocks = (u32)((q.n + q.block - 1) / q.block);
    for (u32 b = t.block * teams + t.local / q.lanes; b < blocks; b += t.blocks * teams) {
        Part part = part_of(q.n, q.chunk, q.block, count, b);
        Team team = {t.local % q.lanes, q.lanes, part.len, q.wide && part.in_chunk % 4 == 0};
        GLOBAL const u8* codes = state + part.codes;
        GLOBAL const f32* absmax = (GLOBAL const f32*)(state + part.absmax);
        float scale1 = count > 0 ? absmax[0] : 0, scale2 = count > 1 ? absmax[part.blocks] : 0;
        UNROLL_2 for (u32 j = 0; j < QUADS; j++) {
            Pack<u8, 4> c1 = {}, c2 = {};
            if (count > 0) c1 = load(team, codes, j);
            if (count > 1) c2 = load(team, codes + part.in_chunk, j);
            Pack<f32, 4> gx = load_floats(team, g, q.g_type, part.at, j), px = load_floats(team, p, q.p_type, part.at, j);
            UNROLL for (u32 k = 0; k < 4; k++) {
                if (slot(team, 4 * j + k) >= team.len) continue;
                States<2> s = {{value_of(tables, q.has_sign & 1, c1.x[k]) * scale1, tables->map2[c2.x[k]] * scale2}};
                square(sum, q, px.x[k], gx.x[k], s);
            }
        }
    }
    return sum;
}

KERNEL(quant8_squares8, 256, OPERAND(const u8, p, 0), OPERAND(const u8, g, 1), OPERAND(const u8, state, 2),
       OPERAND(u64, pairs, 3), PARAMS(Rule8Params, q)) {
    SHARED(Tables, tables, 1);
    SHARED(Squares, sums, 256);
    Thread t = THREAD;
    FILL_TABLES(t, tables, q)
    write_squares(t, pairs, squares8(t, p, g, state, q.step, tables), sums);
}

// ---- 32 bits: elements of a chunk by tiles of 4 a thread.

DEVICE Squares squares32(Thread t, GLOBAL const u8* p, GLOBAL const u8* g, GLOBAL const f32* state, Step q) {
    Squares sum = {wide_zero(), wide_zero()};
    u32 size = t.threads * 4, count = states_of(q.factors.rule);
    u64 tiles = tiles_of(q.n, q.chunk, size);
    for (u64 i = t.block; i < tiles; i += t.blocks) {
        Tile tile = tile_of(q.n, q.chunk, count, size, i);
        Team team = {t.local, t.threads, tile.len, q.wide && tile.in_chunk % 4 == 0};
        Pack<f32, 4> px = load_floats(team, p, q.p_type, tile.at, 0), gx = load_floats(team, g, q.g_type, tile.at, 0);
        Pack<f32, 4> m = {}, v = {};
        if (count > 0) m = load(team, state + tile.state, 0);
        if (count > 1) v = load(team, state + tile.state + tile.in_chunk, 0);
        UNROLL for (u32 k = 0; k < 4; k++) {
            if (slot(team, k) >= tile.len) continue;
            States<2> s = {{m.x[k], v.x[k]}};
            square(sum, q, px.x[k], gx.x[k], s);
        }
    }
    return sum;
}

KERNEL(quant8_squares32, 256, OPERAND(const u8, p, 0), OPERAND(const u8, g, 1), OPERAND(const f32, state, 2),
       OPERAND(u64, pairs, 3), PARAMS(Step, q)) {
    SHARED(Squares, sums, 256);
    Thread t = THREAD;
    write_squares(t, pairs, squares32(t, p, g, state, q), sums);
}
