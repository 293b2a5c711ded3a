// The forward pass with keys and values in a cache: in pages, or integers of 8 bits.
#pragma once
#include "featured_forward.h"

enum { TYPE_U8 = 4 };

// Line is a row of a cache: its first element, and the scale of integers.
struct Line {
    u64 at;
    f32 scale;
    u32 unused;
};

// CachedRows is rows of a tile that may lie anywhere.
struct CachedRows {
    GLOBAL const u8* x;
    GROUP const Line* lines;
    u32 n, dim, type;
};

DEVICE float scaled(f32 x, float) { return x; }
DEVICE float scaled(f16 x, float) { return widen(x); }
DEVICE float scaled(bf16 x, float) { return widen(x); }
DEVICE float scaled(u8 x, float scale) { return (float)((i32)(x ^ 0x80u) - 128) * scale; }

template <class T, u32 N, u32 COLUMNS, u32 STRIDE>
DEVICE void stage_lines(Thread t, GROUP f32* to, CachedRows x, u32 first, u32 from) {
    u32 column = t.local % COLUMNS;
    UNROLL_2 for (u32 i = 0; i < N; i += THREADS / COLUMNS) {
        u32 row = i + t.local / COLUMNS;
        float y = 0;
        if (first + row < x.n && from + column < x.dim) {
            Line line = x.lines[first + row];
            y = scaled(((GLOBAL const T*)x.x)[line.at + from + column], line.scale);
        }
        to[row * STRIDE + column] = y;
    }
}

template <u32 N, u32 COLUMNS, u32 STRIDE>
DEVICE void stage(Thread t, GROUP Quad* room, CachedRows x, u32 first, u32 from) {
    GROUP f32* to = (GROUP f32*)room;
    if (x.type == TYPE_U8) stage_lines<u8, N, COLUMNS, STRIDE>(t, to, x, first, from);
    else if (x.type == TYPE_F32) stage_lines<f32, N, COLUMNS, STRIDE>(t, to, x, first, from);
    else if (x.type == TYPE_F16) stage_lines<f16, N, COLUMNS, STRIDE>(t, to, x, first, from);
    else stage_lines<bf16, N, COLUMNS, STRIDE>(t, to, x, first, from);
}

// Cache is a Source.
struct Cache {
    GLOBAL const u8 *k, *v;
    GLOBAL const f32 *k_scales, *v_scales;
    GLOBAL const i32* table;
    GROUP Line* lines; // of a tile: keys, then values
    GROUP const Head* head;
};
DEVICE i64 first_of(Cache from) { return from.head->q0; }

// load fills lines, one a thread. Pages that there are not count as the first or last.
DEVICE void load(Thread t, CONSTANT Features& p, GROUP const Head& head, Cache from, i64 k0) {
    sync_threads(); // all have read what was there
    bool value = t.local >= TILE;
    i64 row = k0 + t.local % TILE;
    u64 key = (u64)(head.s.k0 + row), batch = head.s.batch, rows = (u64)p.shape.seq_k, kv = head.h / p.shape.group;
    if (t.local < 2 * TILE && row < head.s.nk) {
        if (p.page) {
            u32 page = (u32)p.page, n = (u32)key / page; // Go checks that 32 bits hold them
            batch = (u64)between(from.table[batch * p.table + n], 0, (i64)p.pages - 1);
            key -= n * page, rows = page;
        }
        Strides st = value ? p.shape.v : p.shape.k;
        GLOBAL const f32* scales = value ? from.v_scales : from.k_scales;
        Line line = {batch * st.batch + kv * st.head + key * st.row, 1, 0};
        if ((value ? p.type_v : p.type_k) == TYPE_U8) line.scale = scales[(batch * p.shape.kv_heads + kv) * rows + key];
        from.lines[t.local] = line;
    }
    sync_threads();
}

DEVICE CachedRows k_of(CONSTANT Features& p, GROUP const Head& head, Cache from, i64 k0) {
    return CachedRows{from.k, from.lines, within(head.s.nk - k0, TILE), p.shape.dim, p.type_k};
}
DEVICE CachedRows v_of(CONSTANT Features& p, GROUP const Head& head, Cache from, i64 k0) {
    return CachedRows{from.v, from.lines + TILE, within(head.s.nk - k0, TILE), p.shape.dim_v, p.type_v};
}

KERNEL(attention_forward_cached, 256, OPERAND(u8, out, 0), OPERAND(f32, lse, 1), OPERAND(const u8, q, 2), OPERAND(const u8, k, 3),
       OPERAND(const u8, v, 4), OPERAND(const f32, slopes, 5), OPERAND(const f32, sinks, 6), OPERAND(const u8, bias, 7),
       OPERAND(const i32, tiles, 8), OPERAND(const u64, words, 9), OPERAND(const f32, k_scales, 10), OPERAND(const f32, v_scales, 11),
       OPERAND(const i32, table, 12), PARAMS(Features, p)) {
    SHARED(Quad, room, ROOM);
    SHARED(u16, kept, BITS);
    SHARED(Head, head, 1);
    SHARED(Line, lines, 2 * TILE);
    Thread t = THREAD;
    Extras x = {slopes, sinks, bias, tiles, words};
    for (u64 item = t.block; item < p.shape.items; item += t.blocks) {
        Part at = query_part(p, t, item);
        if (at.q0 < 0) continue;
        load_head(t, head, p, at.n, at.h, at.q0, x);
        Cache cache = {k, v, k_scales, v_scales, table, lines, head};
        forward_features(t, room, kept, p, head[0], All{}, at.from, out, lse, q, cache, x);
    }
}

KERNEL(attention_split_cached, 256, OPERAND(u8, sums, 0), OPERAND(f32, states, 1), OPERAND(const u8, q, 2), OPERAND(const u8, k, 3),
       OPERAND(const u8, v, 4), OPERAND(const f32, slopes, 5), OPERAND(const f32, sinks, 6), OPERAND(const u8, bias, 7),
       OPERAND(const i32, tiles, 8), OPERAND(const u64, words, 9), OPERAND(const f32, k_scales, 10), OPERAND(const f32, v_scales, 11),
       OPERAND(const i32, table, 12), PARAMS(Features, p)) {
    SHARED(Quad, room, ROOM);
    SHARED(u16, kept, BITS);
    SHARED(Head, head, 1);
    SHARED(Line, lines, 2 * TILE);
    SHARED(SplitKeys, split, 1);
    Thread t = THREAD;
    Extras x = {slopes, sinks, bias, tiles, words};
    for (u64 item = t.block; item < p.shape.items; item += t.blocks) {
        Part at = query_part(p, t, item / p.splits);
        if (at.q0 < 0) continue;
        load_head(t, head, p, at.n, at.h, at.q0, x);
        load_split(t, split, p, head[0], item % p.splits);
        Cache cache = {k, v, k_scales, v_scales, table, lines, head};
        forward_features(t, room, kept, p, head[0], split, at.from, sums, states, q, cache, x);
    }
}
