// The sums of squares that trust ratios, and limits of updates, are made of.
#pragma once
#include "step.h"
#include "wide.h"

// Squares are those of the parameter, and of update_of.
struct Squares { Wide parameter, update; };

DEVICE Squares both(Squares a, Squares b) {
    return Squares{wide_sum(a.parameter, b.parameter), wide_sum(a.update, b.update)};
}

// quotient returns u of Adafactor, where v is that of the step before.
DEVICE float quotient(PRIVATE const Factors& c, float g, float v) { return g / divisor(c, c.beta2 * v + c.rest2 * g * g); }

// update_of returns LAMB's and Adafactor's u, for LARS the gradient, and else what the learning rate is
// multiplied by: the step from 0 by the gradient, with decay if that is coupled.
DEVICE float update_of(PRIVATE const Factors& c, u32 states, float p, float g, States<3> s) {
    States<2> two = {{s.x[0], s.x[1]}};
    if (c.rule == LAMB) return direction(c, p, g, two);
    if (c.rule == LARS) return g * c.grad_scale;
    if (c.rule == ADAFACTOR || c.rule == ADAFACTOR_MOMENTUM) return quotient(c, g * c.grad_scale, states == 1 ? s.x[0] : s.x[1]);
    g = gradient(c, p, g);
    Factors plain = c;
    plain.grad_scale = 1;
    plain.l2 = 0;
    if (states == 3) return update(plain, 0, g, s);
    if (states == 2) return update(plain, 0, g, two);
    States<1> one = {{s.x[0]}};
    return update(plain, 0, g, one);
}

// square adds one element. What a step would leave alone has no update.
DEVICE void square(PRIVATE Squares& sum, PRIVATE const Step& q, float p, float g, States<3> s) {
    float u = q.skip && too_large(q, g) ? 0 : update_of(q.factors, q.states, p, g, s);
    sum = both(sum, Squares{wide_square(p), wide_square(u)});
}

// states_read returns how many states an update depends on: LARS's does not.
DEVICE u32 states_read(PRIVATE const Step& q) { return q.factors.rule == LARS ? 0 : q.states; }

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

// ---- 8 and 4 bits: a team of threads takes one block at a time.

// squares_blocks takes Tables or Nibbles.
template <class Codes>
DEVICE Squares squares_blocks(Thread t, GLOBAL const u8* p, GLOBAL const u8* g, GLOBAL const u8* state, Step q, GROUP const Codes* tables) {
    Squares sum = {wide_zero(), wide_zero()};
    u32 teams = t.threads / q.lanes, blocks = (u32)((q.n + q.block - 1) / q.block), count = states_read(q);
    for (u32 b = t.block * teams + t.local / q.lanes; b < blocks; b += t.blocks * teams) {
        Part part = part_of(q.n, q.chunk, q.block, q.states, Codes::bits, b);
        Team team = {t.local % q.lanes, q.lanes, part.len, q.wide && part.in_chunk % 4 == 0, Codes::bits == 4};
        GLOBAL const u8* codes = state + part.codes;
        GLOBAL const f32* absmax = (GLOBAL const f32*)(state + part.absmax);
        float scale[3];
        UNROLL for (u32 i = 0; i < 3; i++) scale[i] = i < count ? absmax[i * part.blocks] : 0;
        UNROLL_1 for (u32 j = 0; j < QUADS; j++) {
            Pack<u8, 4> c[3] = {};
            UNROLL for (u32 i = 0; i < 3; i++)
                if (i < count) c[i] = load_codes(tables, team, codes + i * part.size, j);
            Pack<f32, 4> gx = load_floats(team, g, q.g_type, part.at, j), px = load_floats(team, p, q.p_type, part.at, j);
            UNROLL for (u32 k = 0; k < 4; k++) {
                if (slot(team, 4 * j + k) >= team.len) continue;
                States<3> s;
                UNROLL for (u32 i = 0; i < 3; i++) s.x[i] = value_of(tables, q.has_sign >> i & 1, c[i].x[k]) * scale[i];
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
    write_squares(t, pairs, squares_blocks(t, p, g, state, q.step, tables), sums);
}

KERNEL(quant8_squares4, 256, OPERAND(const u8, p, 0), OPERAND(const u8, g, 1), OPERAND(const u8, state, 2),
       OPERAND(u64, pairs, 3), PARAMS(Rule4Params, q)) {
    SHARED(Nibbles, tables, 1);
    SHARED(Squares, sums, 256);
    Thread t = THREAD;
    FILL_NIBBLES(t, tables, q)
    write_squares(t, pairs, squares_blocks(t, p, g, state, q.step, tables), sums);
}

// ---- 32 and 16 bits: elements of a chunk by tiles of 4 a thread.

DEVICE Squares squares_floats(Thread t, GLOBAL const u8* p, GLOBAL const u8* g, GLOBAL const u8* state, Step q) {
    Squares sum = {wide_zero(), wide_zero()};
    u32 size = t.threads * 4, count = states_read(q);
    u64 tiles = tiles_of(q.n, q.chunk, size);
    for (u64 i = t.block; i < tiles; i += t.blocks) {
        Tile tile = tile_of(q.n, q.chunk, q.states, size, i);
        Team team = {t.local, t.threads, tile.len, q.wide && tile.in_chunk % 4 == 0, false};
        Pack<f32, 4> px = load_floats(team, p, q.p_type, tile.at, 0), gx = load_floats(team, g, q.g_type, tile.at, 0);
        Pack<f32, 4> x[3] = {};
        UNROLL for (u32 i = 0; i < 3; i++)
            if (i < count) x[i] = load_floats(team, state, q.s_type, tile.state + i * tile.in_chunk, 0);
        UNROLL for (u32 k = 0; k < 4; k++) {
            if (slot(team, k) >= tile.len) continue;
            States<3> s = {{x[0].x[k], x[1].x[k], x[2].x[k]}};
            square(sum, q, px.x[k], gx.x[k], s);
        }
    }
    return sum;
}

KERNEL(quant8_squares_floats, 256, OPERAND(const u8, p, 0), OPERAND(const u8, g, 1), OPERAND(const u8, state, 2),
       OPERAND(u64, pairs, 3), PARAMS(FloatsParams, q)) {
    SHARED(Squares, sums, 256);
    Thread t = THREAD;
    write_squares(t, pairs, squares_floats(t, p, g, state, q.step), sums);
}
