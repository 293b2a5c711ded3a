// The forward pass with features.
#pragma once
#include "featured.h"
#include "forward.h"

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

// begin_softmax begins with a score that has no value, a sink.
DEVICE Softmax begin_softmax(Thread t, CONSTANT Features& p, GROUP const Head& head, Extras x) {
    Softmax state;
    float most = -infinity(), sum = 0;
    if (p.sunk) {
        float sink = x.sinks[head.h];
        if (sink < bits_float(0x7f7fffffu) && sink > -infinity()) most = sink * 1.44269502f, sum = 1;
        else if (sink != -infinity()) sum = bits_float(0x7fc00000u); // NaN for all
    }
    UNROLL for (u32 r = 0; r < 4; r++) state.most[r] = most, state.sum[r] = column_at(t) == 0 ? sum : 0;
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

template <class Source>
DEVICE void forward_features(Thread t, GROUP Quad* room, GROUP u16* kept, CONSTANT Features& p, GROUP const Head& head, u32 from,
                             GLOBAL u8* out, GLOBAL f32* lse, GLOBAL const u8* q, Source source, Extras x) {
    GROUP const Sequence& s = head.s;
    Softmax state = begin_softmax(t, p, head, x);
    Sums sums;
    clear(sums);
    i64 end = end_key(p, s, least(first_of(source) + TILE, s.nq) - 1);
    for (i64 k0 = first_key(p, s, first_of(source)) / TILE * TILE; k0 < end; k0 += TILE) {
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
    GLOBAL f32* rows = p.shape.want_lse && from == 0 ? lse + row_of(p, head, first_of(source)) : nullptr;
    finish(t, state, sums, query_rows(p, out, p.shape.out, head, first_of(source), p.shape.dim_v), from, rows);
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
        forward_features(t, room, kept, p, head[0], at.from, out, lse, q, Plain{k, v, at.q0}, x);
    }
}
