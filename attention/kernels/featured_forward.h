// The forward pass with features.
#pragma once
#include "featured.h"
#include "split.h"

// Part is what a block computes: a tile of queries of one head, and of it columns from
// `from` on.
struct Part {
    u64 n, h; // sequence of the launch, and head
    i64 q0;   // negative for none
    u32 from;
};

// query_part returns that of an item. The last tiles come first, as in query_item.
DEVICE Part query_part(CONSTANT Features& p, Thread t, u64 item) {
    u64 heads = p.sequences * p.shape.heads, head = item % heads, n = head / p.shape.heads;
    i64 tiles = (sequence_of(p, n).nq + TILE - 1) / TILE;
    return Part{n, head % p.shape.heads, (tiles - 1 - (i64)(item / heads)) * TILE, t.block_y * WIDTH};
}

// All and SplitKeys are what a block computes of the keys that its tile of queries sees: all, or a split, in block
// memory where registers are few.
struct All {};
struct SplitKeys {
    u64 number;
    Keys keys;
};
DEVICE bool is_first(All) { return true; }
DEVICE bool is_first(GROUP const SplitKeys* split) { return split->number == 0; }
DEVICE Keys keys_of(CONSTANT Features& p, GROUP const Sequence& s, i64 q0) {
    return Keys{first_key(p, s, q0) / TILE * TILE, end_key(p, s, least(q0 + TILE, s.nq) - 1)};
}
DEVICE Keys keys_of(CONSTANT Features& p, GROUP const Sequence& s, i64 q0, All) { return keys_of(p, s, q0); }
DEVICE Keys keys_of(CONSTANT Features&, GROUP const Sequence&, i64, GROUP const SplitKeys* split) { return split->keys; }

// load_split makes split number n of the keys that the tile of head sees.
DEVICE void load_split(Thread t, GROUP SplitKeys* split, CONSTANT Features& p, GROUP const Head& head, u64 n) {
    if (t.local == 0) *split = SplitKeys{n, split_of(keys_of(p, head.s, head.q0), p.splits, n, TILE)};
    sync_threads();
}

// begin_softmax begins with a score that has no value, a sink. It counts in the first split.
template <class Which> DEVICE Softmax begin_softmax(Thread t, CONSTANT Features& p, GROUP const Head& head, Which which, Extras x) {
    Softmax state;
    UNROLL for (u32 r = 0; r < 4; r++) {
        float most = -infinity(), sum = 0;
        if (p.sunk && is_first(which)) {
            u64 row = p.sunk == SUNK_ROW ? head.h * (u64)head.s.nq + (u64)least(head.q0 + row_at(t) + r, head.s.nq - 1) : head.h;
            float sink = x.sinks[row];
            if (sink < bits_float(0x7f7fffffu) && sink > -infinity()) most = sink * 1.44269502f, sum = 1;
            else if (sink != -infinity()) sum = bits_float(0x7fc00000u); // NaN for all
        }
        state.most[r] = most, state.sum[r] = column_at(t) == 0 ? sum : 0;
    }
    return state;
}

// score_tile makes scores in units of log 2 of the products that count.
DEVICE void score_tile(Thread t, CONSTANT Features& p, GROUP const Head& head, Tile at, SeenBits seen, PRIVATE Scores& s, Extras x) {
    UNROLL for (u32 r = 0; r < 4; r++)
        UNROLL for (u32 c = 0; c < 4; c++) {
            u32 column = column_at(t) + 16 * c;
            if (has(seen.row[r], column)) s.x[r][c] = score_of(p, head.slope, at, x, s.x[r][c], row_at(t) + r, column).x;
        }
}

// A Source is where keys and values of a launch come from: k_of and v_of return rows of a
// tile, after load. first_of returns the block's first query: from block memory where
// registers are few. Plain is tensors.
struct Plain {
    GLOBAL const u8 *k, *v;
    i64 q0;
};
DEVICE i64 first_of(Plain from) { return from.q0; }
DEVICE void load(Thread, CONSTANT Features&, GROUP const Head&, Plain, i64) {}
DEVICE AnyRows k_of(CONSTANT Features& p, GROUP const Head& head, Plain from, i64 k0) {
    return key_rows(p, from.k, p.shape.k, head.s, head.h / p.shape.group, k0, p.shape.dim);
}
DEVICE AnyRows v_of(CONSTANT Features& p, GROUP const Head& head, Plain from, i64 k0) {
    return key_rows(p, from.v, p.shape.v, head.s, head.h / p.shape.group, k0, p.shape.dim_v);
}

// Lean is Plain with the first query in block memory.
struct Lean {
    GLOBAL const u8 *k, *v;
    GROUP const Head* head;
};
DEVICE i64 first_of(Lean from) { return from.head->q0; }
DEVICE void load(Thread, CONSTANT Features&, GROUP const Head&, Lean, i64) {}
DEVICE AnyRows k_of(CONSTANT Features& p, GROUP const Head& head, Lean from, i64 k0) { return k_of(p, head, Plain{from.k, from.v, 0}, k0); }
DEVICE AnyRows v_of(CONSTANT Features& p, GROUP const Head& head, Lean from, i64 k0) { return v_of(p, head, Plain{from.k, from.v, 0}, k0); }

// features_finish writes out and lse, or leaves what is of a split.
DEVICE void features_finish(Thread t, CONSTANT Features& p, GROUP const Head& head, All, i64 q0, u32 from, PRIVATE Softmax& state,
                            PRIVATE Sums& sums, GLOBAL u8* out, GLOBAL f32* lse) {
    GLOBAL f32* rows = p.shape.want_lse && from == 0 ? lse + row_of(p, head, q0) : nullptr;
    finish(t, state, sums, query_rows(p, out, p.shape.out, head, q0, p.shape.dim_v), from, rows);
}
DEVICE void features_finish(Thread t, CONSTANT Features& p, GROUP const Head& head, GROUP const SplitKeys* split, i64 q0, u32 from,
                            PRIVATE Softmax& state, PRIVATE Sums& sums, GLOBAL u8* out, GLOBAL f32* lse) {
    u64 row = split->number * p.shape.rows + row_of(p, head, q0);
    u32 n = (u32)least(head.s.nq - q0, (i64)TILE);
    leave(t, state, sums, left_rows((GLOBAL f32*)out, row, n, p.shape.dim_v), from, lse + 2 * row);
}

template <class Which, class Source>
DEVICE void forward_features(Thread t, GROUP Quad* room, GROUP u16* kept, CONSTANT Features& p, GROUP const Head& head, Which which,
                             u32 from, GLOBAL u8* out, GLOBAL f32* lse, GLOBAL const u8* q, Source source, Extras x) {
    GROUP const Sequence& s = head.s;
    Softmax state = begin_softmax(t, p, head, which, x);
    Sums sums;
    clear(sums);
    Keys keys = keys_of(p, s, first_of(source), which);
    for (i64 k0 = keys.begin; k0 < keys.end; k0 += TILE) {
        i32 tile = tile_of(p, head, first_of(source), k0);
        if (tile == HIDDEN) continue;
        Scores w;
        load(t, p, head, source, k0);
        if (p.dropout) draw(t, p, kept, head, first_of(source), k0);
        products(t, w, room, query_rows(p, q, p.shape.q, head, first_of(source), p.shape.dim), k_of(p, head, source, k0));
        SeenBits seen = seen_keys(t, p, head, x, tile, first_of(source), k0);
        score_tile(t, p, head, tile_at(p, head, first_of(source), k0), seen, w, x);
        step(t, state, w, seen, 1, sums);
        if (p.dropout)
            UNROLL for (u32 r = 0; r < 4; r++)
                UNROLL for (u32 c = 0; c < 4; c++)
                    w.x[r][c] = has(kept, row_at(t) + r, column_at(t) + 16 * c) ? w.x[r][c] * p.keep : 0;
        add(t, sums, room, w, seen, v_of(p, head, source, k0), from);
    }
    features_finish(t, p, head, which, first_of(source), from, state, sums, out, lse);
}

KERNEL(attention_forward_features, 256, OPERAND(u8, out, 0), OPERAND(f32, lse, 1), OPERAND(const u8, q, 2), OPERAND(const u8, k, 3),
       OPERAND(const u8, v, 4), OPERAND(const f32, slopes, 5), OPERAND(const f32, sinks, 6), OPERAND(const u8, bias, 7),
       OPERAND(const i32, tiles, 8), OPERAND(const u64, words, 9), PARAMS(Features, p)) {
    SHARED(Quad, room, ROOM);
    SHARED(u16, kept, BITS);
    SHARED(Head, head, 1);
    Thread t = THREAD;
    Extras x = {slopes, sinks, bias, tiles, words};
    for (u64 item = t.block; item < p.shape.items; item += t.blocks) {
        Part at = query_part(p, t, item);
        if (at.q0 < 0) continue;
        load_head(t, head, p, at.n, at.h, at.q0, x);
        forward_features(t, room, kept, p, head[0], All{}, at.from, out, lse, q, Plain{k, v, at.q0}, x);
    }
}

KERNEL(attention_split_features, 256, OPERAND(u8, sums, 0), OPERAND(f32, states, 1), OPERAND(const u8, q, 2), OPERAND(const u8, k, 3),
       OPERAND(const u8, v, 4), OPERAND(const f32, slopes, 5), OPERAND(const f32, sinks, 6), OPERAND(const u8, bias, 7),
       OPERAND(const i32, tiles, 8), OPERAND(const u64, words, 9), PARAMS(Features, p)) {
    SHARED(Quad, room, ROOM);
    SHARED(u16, kept, BITS);
    SHARED(Head, head, 1);
    SHARED(SplitKeys, split, 1);
    Thread t = THREAD;
    Extras x = {slopes, sinks, bias, tiles, words};
    for (u64 item = t.block; item < p.shape.items; item += t.blocks) {
        Part at = query_part(p, t, item / p.splits);
        if (at.q0 < 0) continue;
        load_head(t, head, p, at.n, at.h, at.q0, x);
        load_split(t, split, p, head[0], item % p.splits);
        forward_features(t, room, kept, p, head[0], split, at.from, sums, states, q, Lean{k, v, head}, x);
    }
}
