// AdamW with its moments in 8 or 32 bits.
#pragma once
#include "blobs.h"

// Coef is internal/adam's.
struct Coef {
    f32 beta1, rest1, beta2, rest2, grad_scale, size, eps, pre, post;
};

// update steps one element. Every product and sum is rounded by itself.
DEVICE float update(Coef c, float p, PRIVATE float& m, PRIVATE float& v, float g) {
    g = g * c.grad_scale;
    m = c.beta1 * m + c.rest1 * g;
    v = c.beta2 * v + c.rest2 * g * g;
    p = p * c.pre - c.size * (m / (square_root(v) + c.eps));
    return p * c.post;
}

// ---- 8 bits: a team of threads takes one block at a time.

struct Step8Params {
    u64 n;
    u32 chunk, block; // elements
    u32 lanes, wide;  // threads of a team; whether blocks lie at multiples of packs
    Coef coef;
    u32 p_type, g_type; // numbers of package snug
    f32 positive[129];  // the signed map from the code of 0 on: the codes below have the negatives
    f32 map2[256];
    i32 tree1[TREE], tree2[TREE];
};

// step8 counts blocks in 32 bits: no device has memory for more of them.
DEVICE void step8(Thread t, GLOBAL u8* p, u32 p_type, GLOBAL const u8* g, u32 g_type, GLOBAL u8* state, u64 n, u32 chunk, u32 block,
                  Team team, Coef coef, GROUP const Tables* tables, GROUP u32* scratch) {
    u32 teams = t.threads / team.lanes, mine = t.local / team.lanes, count = (u32)((n + block - 1) / block);
    bool wide = team.wide;
    for (u32 first = t.block * teams; first < count; first += t.blocks * teams) {
        u32 b = first + mine;
        Part part = part_of(n, chunk, block, 2, 8, least(b, count - 1));
        team.len = b < count ? part.len : 0;
        team.wide = wide && part.in_chunk % 4 == 0;
        GLOBAL u8* codes1 = state + part.codes;
        GLOBAL u8* codes2 = codes1 + part.size;
        GLOBAL f32* absmax1 = (GLOBAL f32*)(state + part.absmax);
        GLOBAL f32* absmax2 = absmax1 + part.blocks;
        float scale1 = 0, scale2 = 0, m[SLOTS], v[SLOTS];
        if (team.len > 0) scale1 = *absmax1, scale2 = *absmax2;
        UNROLL for (u32 j = 0; j < QUADS; j++) {
            Pack<u8, 4> c1 = load(team, codes1, j), c2 = load(team, codes2, j);
            Pack<f32, 4> y = load_floats(team, g, g_type, part.at, j), x = load_floats(team, p, p_type, part.at, j);
            UNROLL for (u32 k = 0; k < 4; k++) {
                u32 e = 4 * j + k;
                m[e] = signed_value(tables->positive, c1.x[k]) * scale1;
                v[e] = tables->map2[c2.x[k]] * scale2;
                x.x[k] = update(coef, x.x[k], m[e], v[e], y.x[k]);
                if (slot(team, e) >= team.len) m[e] = v[e] = 0;
            }
            store_floats(team, p, p_type, part.at, j, x);
        }
        scale1 = absmax_of<SLOTS>(t, team, m, scratch);
        if (team.lane == 0 && team.len > 0) *absmax1 = scale1;
        encode(team, codes1, m, scale1, tables->tree1);
        scale2 = absmax_of<SLOTS>(t, team, v, scratch);
        if (team.lane == 0 && team.len > 0) *absmax2 = scale2;
        encode(team, codes2, v, scale2, tables->tree2);
    }
}

KERNEL(quant8_step8, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(u8, state, 2), PARAMS(Step8Params, q)) {
    SHARED(Tables, tables, 1);
    SHARED(u32, scratch, GROUPS);
    Thread t = THREAD;
    FILL_TABLES(t, tables, q)
    Team team = {t.local % q.lanes, q.lanes, 0, q.wide != 0, false};
    step8(t, p, q.p_type, g, q.g_type, state, q.n, q.chunk, q.block, team, q.coef, tables, scratch);
}

// ---- 32 bits: elements of a chunk by tiles of 4 a thread.

struct Step32Params {
    u64 n;
    u32 chunk;
    u32 wide; // all operands and chunks lie at multiples of 16 bytes
    Coef coef;
    u32 p_type, g_type, unused;
};

DEVICE void step32(Thread t, GLOBAL u8* p, GLOBAL const u8* g, GLOBAL f32* state, Step32Params q) {
    u32 tile = t.threads * 4, per = (q.chunk + tile - 1) / tile; // tiles of a chunk
    u64 count = (q.n + q.chunk - 1) / q.chunk * per;
    for (u64 i = t.block; i < count; i += t.blocks) {
        u64 c = i / per, start = c * q.chunk;
        u32 len = (u32)least((u64)q.chunk, q.n - start), lo = (u32)(i - c * per) * tile;
        if (lo >= len) continue;
        Team team = {t.local, t.threads, least(tile, len - lo), q.wide && len % 4 == 0, false};
        GLOBAL f32* m = state + 2 * start + lo;
        GLOBAL f32* v = m + len;
        Pack<f32, 4> px = load_floats(team, p, q.p_type, start + lo, 0), gx = load_floats(team, g, q.g_type, start + lo, 0);
        Pack<f32, 4> mx = load(team, m, 0), vx = load(team, v, 0);
        UNROLL for (u32 k = 0; k < 4; k++) px.x[k] = update(q.coef, px.x[k], mx.x[k], vx.x[k], gx.x[k]);
        store_floats(team, p, q.p_type, start + lo, 0, px);
        store(team, m, 0, mx);
        store(team, v, 0, vx);
    }
}

KERNEL(quant8_step32, 256, OPERAND(u8, p, 0), OPERAND(const u8, g, 1), OPERAND(f32, state, 2), PARAMS(Step32Params, q)) {
    step32(THREAD, p, g, state, q);
}
