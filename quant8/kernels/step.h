// The step of every rule, for one to three states in 4, 8, 16 or 32 bits.
#pragma once
#include "nibbles.h"
#include "random.h"
#include "rules.h"

// Sides are those of a matrix of Adafactor, else 0.
struct Sides {
    u64 rows, cols;
    f32 limit; // of the product of two roots
    u32 unused;
};

// Step is what the parameters of the kernels of all rules begin with.
struct Step {
    u64 n;
    u64 seed, tensor, first; // the stream of random numbers, and the number of its half for element 0
    u32 chunk, block;        // elements
    u32 lanes, wide;         // threads of a team; whether blocks lie at multiples of packs
    u32 p_type, g_type;      // numbers of package snug
    u32 skip, random;        // whether to leave elements with large gradients, and to round at random
    u32 has_sign, states;    // a bit for each state; how many there are
    u32 s_type, unused;      // of states that are not codes
    Factors factors;
    Sides sides;
};

// TOO_LARGE is 2^63: magnitudes from there on count as infinite.
enum : u32 { TOO_LARGE = (63 + 127) << 23 };

DEVICE bool too_large(float g) { return (float_bits(g) & 0x7fffffffu) >= TOO_LARGE; }
DEVICE bool too_large(PRIVATE const Step& q, float g) { return too_large(g * q.factors.grad_scale); }

// draws returns the 16-bit halves of the stream of a seed for slots 4j to 4j+3 of
// elements `at` and up, the first one lowest.
DEVICE u64 draws(PRIVATE const Step& q, u64 seed, Team team, u64 at, u32 j) {
    u64 all = 0, number = ~(u64)0; // of the block of which r is
    Words4 r = {{0, 0, 0, 0}};
    UNROLL_1 for (u32 k = 0; k < 4; k++) {
        u64 i = q.first + at + slot(team, 4 * j + k);
        if (i / 8 != number) {
            number = i / 8;
            r = philox(seed, q.tensor, number);
        }
        u32 h = (u32)(i % 8); // half_of would index words that lie in registers
        u32 low = h & 2 ? r.word[1] : r.word[0], high = h & 2 ? r.word[3] : r.word[2];
        all |= (u64)((h & 4 ? high : low) >> 16 * (h & 1) & 0xffffu) << 16 * k;
    }
    return all;
}

// store_but is store of what has no bit in kept.
template <class T> DEVICE void store_but(u32 kept, Team team, GLOBAL T* x, u32 j, Pack<T, 4> y) {
    if (team.wide && kept == 0) {
        store(team, x, j, y);
        return;
    }
    UNROLL for (u32 k = 0; k < 4; k++) {
        u32 at = slot(team, 4 * j + k);
        if (at < team.len && !(kept >> k & 1)) x[at] = y.x[k];
    }
}

template <class T> DEVICE Pack<u16, 4> rounded(Pack<f32, 4> x, u32 random, u64 draw) {
    Pack<u16, 4> y;
    UNROLL for (u32 k = 0; k < 4; k++)
        y.x[k] = (random ? round_at_random<T>(x.x[k], (u32)(draw >> 16 * k) & 0xffffu) : narrow<T>(x.x[k])).bits;
    return y;
}

// store_parameters rounds slots 4j to 4j+3 of p to its type and stores those that
// have no bit in kept.
DEVICE void store_parameters(PRIVATE const Step& q, u32 kept, Team team, GLOBAL u8* p, u64 at, u32 j, Pack<f32, 4> x) {
    if (q.p_type == 1) {
        store_but(kept, team, (GLOBAL f32*)p + at, j, x);
        return;
    }
    u64 draw = q.random ? draws(q, q.seed, team, at, j) : 0;
    Pack<u16, 4> y = q.p_type == 2 ? rounded<f16>(x, q.random, draw) : rounded<bf16>(x, q.random, draw);
    store_but(kept, team, (GLOBAL u16*)p + at, j, y);
}

// stepped steps one element and returns whether the parameter keeps its bits. That of MUON
// is to be orthogonalized: it is 0 instead.
template <int count> DEVICE bool stepped(PRIVATE const Step& q, PRIVATE float& p, float g, PRIVATE States<count>& s) {
    if (q.skip && too_large(q, g)) {
        UNROLL for (int i = 0; i < count; i++) s.x[i] = 0;
        p = 0;
        return q.factors.rule != MUON;
    }
    p = update(q.factors, p, g, s);
    return false;
}

// ---- 8 and 4 bits: a team of threads takes one block at a time, as for AdamW. G is what
// load_floats takes gradients from.

struct Rule8Params {
    Step step;
    f32 positive[129]; // the signed map from the code of 0 on
    u32 unused;
    f32 map2[256];
    i32 tree1[TREE], tree2[TREE];
};

struct Rule4Params {
    Step step;
    Nibbles tables;
};

// rule_blocks takes Tables or Nibbles.
template <int count, class Codes, class G>
DEVICE void rule_blocks(Thread t, GLOBAL u8* p, G g, GLOBAL u8* state, Step q, GROUP const Codes* tables, GROUP u32* scratch) {
    const u32 slots = Codes::slots;
    u32 teams = t.threads / q.lanes, mine = t.local / q.lanes, blocks = (u32)((q.n + q.block - 1) / q.block);
    for (u32 start = t.block * teams; start < blocks; start += t.blocks * teams) {
        u32 b = start + mine;
        Part part = part_of(q.n, q.chunk, q.block, count, Codes::bits, least(b, blocks - 1));
        Team team = {t.local % q.lanes, q.lanes, b < blocks ? part.len : 0, q.wide && part.in_chunk % 4 == 0, Codes::bits == 4};
        GLOBAL u8* codes = state + part.codes;
        GLOBAL f32* absmax = (GLOBAL f32*)(state + part.absmax);
        float scale[count], x[count][slots];
        UNROLL for (int i = 0; i < count; i++) scale[i] = team.len > 0 ? absmax[i * part.blocks] : 0;
        UNROLL for (u32 j = 0; j < slots / 4; j++) {
            Pack<u8, 4> c[count];
            UNROLL for (int i = 0; i < count; i++) c[i] = load_codes(tables, team, codes + i * part.size, j);
            Pack<f32, 4> px = load_floats(team, p, q.p_type, part.at, j), gx = load_floats(team, g, q.g_type, part.at, j);
            u32 kept = 0;
            UNROLL for (u32 k = 0; k < 4; k++) {
                u32 e = 4 * j + k;
                bool here = slot(team, e) < team.len;
                States<count> s;
                UNROLL for (int i = 0; i < count; i++) s.x[i] = value_of(tables, q.has_sign >> i & 1, c[i].x[k]) * scale[i];
                kept |= stepped(q, px.x[k], gx.x[k], s) ? 1u << k : 0;
                UNROLL for (int i = 0; i < count; i++) x[i][e] = here ? s.x[i] : 0;
            }
            store_parameters(q, kept, team, p, part.at, j, px);
        }
        UNROLL for (int i = 0; i < count; i++) {
            float top = absmax_of<slots>(t, team, x[i], scratch);
            if (team.lane == 0 && team.len > 0) absmax[i * part.blocks] = top;
            encode(tables, q.has_sign >> i & 1, team, codes + i * part.size, x[i], top);
        }
    }
}

#define RULE8(count)                                                                                            \
    KERNEL(quant8_rule8_##count, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(u8, state, 2),        \
           PARAMS(Rule8Params, q)) {                                                                            \
        SHARED(Tables, tables, 1);                                                                              \
        SHARED(u32, scratch, GROUPS);                                                                           \
        Thread t = THREAD;                                                                                      \
        FILL_TABLES(t, tables, q)                                                                               \
        rule_blocks<count>(t, p, g, state, q.step, tables, scratch);                                            \
    }
RULE8(1)
RULE8(2)
RULE8(3)

#define RULE4(count)                                                                                            \
    KERNEL(quant8_rule4_##count, THREADS4, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(u8, state, 2),   \
           PARAMS(Rule4Params, q)) {                                                                            \
        SHARED(Nibbles, tables, 1);                                                                             \
        SHARED(u32, scratch, THREADS4 / GROUP_LANES);                                                           \
        Thread t = THREAD;                                                                                      \
        FILL_NIBBLES(t, tables, q)                                                                              \
        rule_blocks<count>(t, p, g, state, q.step, tables, scratch);                                            \
    }
RULE4(1)
RULE4(2)
RULE4(3)

// ---- 32 and 16 bits: elements of a chunk by tiles of 4 a thread.

// Tile is where a tile lies: in the parameter, and in the state, of which the next
// one of its elements comes in_chunk elements later.
struct Tile {
    u64 at, state;
    u32 len, in_chunk; // elements, none for a tile beyond the end of the last chunk
};

DEVICE u64 tiles_of(u64 n, u32 chunk, u32 size) { return (n + chunk - 1) / chunk * ((chunk + size - 1) / size); }

DEVICE Tile tile_of(u64 n, u32 chunk, u32 states, u32 size, u64 number) {
    u32 per = (chunk + size - 1) / size; // tiles of a chunk
    u64 before = number / per, start = before * chunk;
    u32 lo = (u32)(number - before * per) * size, in_chunk = (u32)least((u64)chunk, n - start);
    return Tile{start + lo, start * states + lo, lo < in_chunk ? least(size, in_chunk - lo) : 0, in_chunk};
}

struct FloatsParams {
    Step step;
    u64 seeds[3]; // of the random numbers that round states of 16 bits
};

template <int count, class G> DEVICE void rule_floats(Thread t, GLOBAL u8* p, G g, GLOBAL u8* state, Step q, FloatsParams all) {
    u32 size = t.threads * 4;
    u64 tiles = tiles_of(q.n, q.chunk, size);
    for (u64 i = t.block; i < tiles; i += t.blocks) {
        Tile tile = tile_of(q.n, q.chunk, count, size, i);
        if (tile.len == 0) continue;
        Team team = {t.local, t.threads, tile.len, q.wide && tile.in_chunk % 4 == 0, false};
        Pack<f32, 4> px = load_floats(team, p, q.p_type, tile.at, 0), gx = load_floats(team, g, q.g_type, tile.at, 0), x[count];
        UNROLL for (int i = 0; i < count; i++) x[i] = load_floats(team, state, q.s_type, tile.state + i * tile.in_chunk, 0);
        u32 kept = 0;
        UNROLL for (u32 k = 0; k < 4; k++) {
            States<count> s;
            UNROLL for (int i = 0; i < count; i++) s.x[i] = x[i].x[k];
            kept |= stepped(q, px.x[k], gx.x[k], s) ? 1u << k : 0;
            UNROLL for (int i = 0; i < count; i++) x[i].x[k] = s.x[i];
        }
        store_parameters(q, kept, team, p, tile.at, 0, px);
        if (q.s_type == 1) {
            UNROLL for (int i = 0; i < count; i++) store(team, (GLOBAL f32*)state + tile.state + i * tile.in_chunk, 0, x[i]);
            continue;
        }
        UNROLL_1 for (int i = 0; i < count; i++) { // the random numbers of one state at a time take fewer registers
            Pack<f32, 4> y = x[0];
            u64 seed = all.seeds[0];
            UNROLL for (int o = 1; o < count; o++)
                if (o == i) y = x[o], seed = all.seeds[o];
            store(team, (GLOBAL u16*)state + tile.state + i * tile.in_chunk, 0, rounded<bf16>(y, 1, draws(q, seed, team, tile.at, 0)));
        }
    }
}

#define RULE_FLOATS(count)                                                                                        \
    KERNEL(quant8_rule_floats_##count, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(u8, state, 2),    \
           PARAMS(FloatsParams, q)) {                                                                             \
        rule_floats<count>(THREAD, p, g, state, q.step, q);                                                       \
    }
RULE_FLOATS(1)
RULE_FLOATS(2)
RULE_FLOATS(3)
