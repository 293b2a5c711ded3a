// Where the states of a step in 8 bits lie: as in storage.go, blobs of chunks, one
// after the other.
#pragma once
#include "codes.h"

// Tables is what the parameters of a step in 8 bits hold of the maps, in block memory.
struct Tables {
    enum : u32 { bits = 8, slots = SLOTS }; // of a code; elements of a block that a thread has, at most
    f32 positive[129], map2[256];
    i32 tree1[TREE], tree2[TREE];
};

// FILL_TABLES copies the maps of parameters q to tables, with a block of 256 threads.
#define FILL_TABLES(t, tables, q)                                          \
    if (t.local < 129) tables[0].positive[t.local] = q.positive[t.local]; \
    tables[0].map2[t.local] = q.map2[t.local];                             \
    tables[0].tree1[t.local] = q.tree1[t.local];                           \
    tables[0].tree2[t.local] = q.tree2[t.local];                           \
    sync_threads();

enum { ZERO = 127 }; // the code of 0 in the signed map

DEVICE float signed_value(GROUP const f32* positive, u32 code) {
    return code < ZERO ? -positive[ZERO - code] : positive[code - ZERO];
}

DEVICE float value_of(GROUP const Tables* tables, u32 has_sign, u32 code) {
    return has_sign ? signed_value(tables->positive, code) : tables->map2[code];
}

DEVICE Pack<u8, 4> load_codes(GROUP const Tables*, Team team, GLOBAL const u8* codes, u32 j) { return load(team, codes, j); }

DEVICE void encode(GROUP const Tables* tables, u32 has_sign, Team team, GLOBAL u8* codes, PRIVATE const float* x, float absmax) {
    encode(team, codes, x, absmax, has_sign ? tables->tree1 : tables->tree2);
}

// Part is where a block lies: in the parameter, and in the state. The absmax of
// the next state of the block comes `blocks` floats later, and its codes `size`
// bytes later.
struct Part {
    u64 at;                    // elements of the parameter before it
    u64 absmax, codes;         // bytes of the state before those of its first state
    u32 len, in_chunk, blocks; // elements of the block and of the chunk, blocks of the chunk
    u32 size;                  // bytes of the codes of one state of the chunk
};

// bytes_of returns the size of n codes.
DEVICE u32 bytes_of(u32 bits, u32 n) { return bits == 4 ? (n + 1) / 2 : n; }

DEVICE Part part_of(u64 n, u32 chunk, u32 block, u32 states, u32 bits, u32 number) {
    u32 per = chunk / block, before = number / per, b = number % per;
    u64 start = (u64)before * chunk, blob = (u64)before * states * ((u64)per * 4 + bytes_of(bits, chunk));
    Part p;
    p.at = start + b * block;
    p.in_chunk = (u32)least((u64)chunk, n - start);
    p.len = least(block, p.in_chunk - b * block);
    p.blocks = (p.in_chunk + block - 1) / block;
    p.absmax = blob + b * 4;
    p.size = bytes_of(bits, p.in_chunk);
    p.codes = blob + (u64)p.blocks * states * 4 + bytes_of(bits, b * block);
    return p;
}

// load_floats is load for elements `at` and up of a vector whose type has a
// number, that of package snug: kernels for each would be many.
DEVICE Pack<f32, 4> load_floats(Team team, GLOBAL const u8* x, u32 dtype, u64 at, u32 j) {
    if (dtype == 1) return load(team, (GLOBAL const f32*)x + at, j);
    Pack<u16, 4> h = load(team, (GLOBAL const u16*)x + at, j);
    Pack<f32, 4> y;
    UNROLL for (u32 k = 0; k < 4; k++) y.x[k] = dtype == 2 ? widen(f16{h.x[k]}) : widen(bf16{h.x[k]});
    return y;
}

// store_floats is store likewise, to nearest.
DEVICE void store_floats(Team team, GLOBAL u8* x, u32 dtype, u64 at, u32 j, Pack<f32, 4> y) {
    if (dtype == 1) {
        store(team, (GLOBAL f32*)x + at, j, y);
        return;
    }
    Pack<u16, 4> h;
    UNROLL for (u32 k = 0; k < 4; k++) h.x[k] = dtype == 2 ? narrow<f16>(y.x[k]).bits : narrow<bf16>(y.x[k]).bits;
    store(team, (GLOBAL u16*)x + at, j, h);
}
