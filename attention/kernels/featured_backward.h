// The backward pass with features. delta is dout_i · out_i − dlse_i.
#pragma once
#include "backward.h"
#include "featured_forward.h"

struct Minus { u64 n; };

KERNEL(attention_minus, 256, OPERAND(f32, delta, 0), OPERAND(const f32, dlse, 1), PARAMS(Minus, p)) {
    Thread t = THREAD;
    for (u64 i = (u64)t.block * t.threads + t.local; i < p.n; i += (u64)t.blocks * t.threads) delta[i] -= dlse[i];
}

// Tensors are what the passes read.
struct Tensors {
    GLOBAL const u8 *dout, *q, *k, *v;
    GLOBAL const f32 *lse, *delta;
};

// Pair is a query and a key of a tile.
struct Pair {
    u32 i, j;
    bool sees, keeps; // the query the key; dropout the weight
};

// weigh makes of a product the weight in dv, and of that of gradients the gradient of
// the product, or of the bias.
DEVICE void weigh(CONSTANT Features& p, float slope, Tile tile, Extras x, PRIVATE float& w, PRIVATE float& ds, Pair at, Query query,
                  bool in_bias) {
    if (!at.sees) {
        w = 0, ds = 0;
        return;
    }
    Score score = score_of(p, slope, tile, x, w, at.i, at.j);
    w = exp2_of(score.x - query.lse2);
    if (p.dropout) ds = at.keeps ? ds * p.keep : 0;
    ds = score_grad(ds, w, query, in_bias ? 1 : score.slope);
    if (p.dropout) w = at.keeps ? w * p.keep : 0;
}

// query_products sets w to the products of a tile's queries and keys, ds to those of its
// gradients and values, and with dropout kept to what that keeps.
DEVICE void query_products(Thread t, GROUP Quad* room, GROUP u16* kept, CONSTANT Features& p, GROUP const Head& head, i64 q0, i64 k0,
                           PRIVATE Scores& w, PRIVATE Scores& ds, Tensors in) {
    u64 kv = head.h / p.shape.group;
    if (p.dropout) draw(t, p, kept, head, q0, k0);
    products(t, w, room, query_rows(p, in.q, p.shape.q, head, q0, p.shape.dim), key_rows(p, in.k, p.shape.k, head.s, kv, k0, p.shape.dim));
    products(t, ds, room, query_rows(p, in.dout, p.shape.out, head, q0, p.shape.dim_v),
             key_rows(p, in.v, p.shape.v, head.s, kv, k0, p.shape.dim_v));
}

// query_grads sets ds to the gradients of a tile's products, or of its bias.
DEVICE void query_grads(Thread t, GROUP Quad* room, GROUP u16* kept, CONSTANT Features& p, GROUP const Head& head, i64 q0, i64 k0, SeenBits seen,
                        PRIVATE Scores& ds, PRIVATE const Query* query, Tensors in, Extras x, bool in_bias) {
    Scores w;
    query_products(t, room, kept, p, head, q0, k0, w, ds, in);
    UNROLL for (u32 r = 0; r < 4; r++)
        UNROLL for (u32 c = 0; c < 4; c++) {
            u32 row = row_at(t) + r, column = column_at(t) + 16 * c;
            Pair at = {row, column, has(seen.row[r], column), p.dropout && has(kept, row, column)};
            weigh(p, head.slope, tile_at(p, head, q0, k0), x, w.x[r][c], ds.x[r][c], at, query[r], in_bias);
        }
}

// load_queries loads what the weights of the thread's queries are computed from.
DEVICE void load_queries(Thread t, CONSTANT Features& p, PRIVATE Query* query, GROUP const Head& head, i64 q0, Tensors in) {
    u64 row = row_of(p, head, q0);
    u32 n = within(head.s.nq - q0, TILE);
    UNROLL for (u32 r = 0; r < 4; r++) query[r] = query_of(in.lse + row, in.delta + row, row_at(t) + r, n);
}

DEVICE void backward_query_features(Thread t, GROUP Quad* room, GROUP u16* kept, CONSTANT Features& p, GROUP const Head& head, i64 q0, u32 from,
                                    GLOBAL u8* dq, Tensors in, Extras x) {
    Query query[4];
    load_queries(t, p, query, head, q0, in);
    Sums sums;
    clear(sums);
    i64 end = end_key(p, head.s, least(q0 + TILE, head.s.nq) - 1);
    for (i64 k0 = first_key(p, head.s, q0) / TILE * TILE; k0 < end; k0 += TILE) {
        i32 tile = tile_of(p, head, q0, k0);
        if (tile == HIDDEN) continue;
        SeenBits seen = seen_keys(t, p, head, x, tile, q0, k0);
        Scores ds;
        query_grads(t, room, kept, p, head, q0, k0, seen, ds, query, in, x, false);
        add(t, sums, room, ds, seen, key_rows(p, in.k, p.shape.k, head.s, head.h / p.shape.group, k0, p.shape.dim), from);
    }
    store(t, sums, Quad{{1, 1, 1, 1}}, query_rows(p, dq, p.shape.q, head, q0, p.shape.dim), from);
}

KERNEL(attention_backward_query_features, 256, OPERAND(u8, dq, 0), OPERAND(const u8, dout, 1), OPERAND(const u8, q, 2),
       OPERAND(const u8, k, 3), OPERAND(const u8, v, 4), OPERAND(const f32, lse, 5), OPERAND(const f32, delta, 6),
       OPERAND(const f32, slopes, 7), OPERAND(const u8, bias, 8), OPERAND(const i32, tiles, 9), OPERAND(const u64, words, 10),
       PARAMS(Features, p)) {
    SHARED(Quad, room, ROOM);
    SHARED(u16, kept, BITS);
    SHARED(Head, head, 1);
    Thread t = THREAD;
    Tensors in = {dout, q, k, v, lse, delta};
    Extras x = {slopes, nullptr, bias, tiles, words};
    for (u64 item = t.block; item < p.shape.items; item += t.blocks) {
        Part at = query_part(p, t, item);
        if (at.q0 < 0) continue;
        load_head(t, head, p, at.n, at.h, at.q0, x);
        backward_query_features(t, room, kept, p, head[0], at.q0, at.from, dq, in, x);
    }
}

// KeySums are the gradients of a tile of keys.
struct KeySums { Sums k, v; };

// add_queries adds what a tile of queries of one head contributes to the gradients of
// a tile of keys. Rows of its scores are keys, columns queries.
DEVICE void add_queries(Thread t, GROUP Quad* room, GROUP u16* bits, CONSTANT Features& p, GROUP const Head& head, i64 k0, i64 q0, i32 tile,
                        PRIVATE KeySums& sums, u32 from, Tensors in, Extras x) {
    GROUP u16* kept = bits + BITS;
    AnyRows queries = query_rows(p, in.q, p.shape.q, head, q0, p.shape.dim);
    AnyRows douts = query_rows(p, in.dout, p.shape.out, head, q0, p.shape.dim_v);
    u64 kv = head.h / p.shape.group, number = row_of(p, head, q0);
    if (tile >= PARTIAL) turn_words(t, bits, words_of(x, tile));
    if (p.dropout) draw(t, p, kept, head, q0, k0);
    Scores w, ds;
    products(t, w, room, key_rows(p, in.k, p.shape.k, head.s, kv, k0, p.shape.dim), queries);
    products(t, ds, room, key_rows(p, in.v, p.shape.v, head.s, kv, k0, p.shape.dim_v), douts);
    SeenBits seen = seen_queries(t, p, head.s, bits, tile, k0, q0);
    UNROLL for (u32 c = 0; c < 4; c++) {
        u32 column = column_at(t) + 16 * c;
        Query query = query_of(in.lse + number, in.delta + number, column, queries.n);
        UNROLL for (u32 r = 0; r < 4; r++) {
            u32 row = row_at(t) + r;
            Pair at = {column, row, has(seen.row[r], column), p.dropout && has(kept, column, row)};
            weigh(p, head.slope, tile_at(p, head, q0, k0), x, w.x[r][c], ds.x[r][c], at, query, false);
        }
    }
    if (from < p.shape.dim_v) add(t, sums.v, room, w, seen, douts, from);
    if (from < p.shape.dim) add(t, sums.k, room, ds, seen, queries, from);
}

DEVICE void backward_key_features(Thread t, GROUP Quad* room, GROUP u16* bits, GROUP Head* head, CONSTANT Features& p, u64 n, u64 kv,
                                  i64 k0, u32 from, GLOBAL u8* dk, GLOBAL u8* dv, Tensors in, Extras x) {
    KeySums sums;
    clear(sums.k);
    clear(sums.v);
    for (u64 h = kv * p.shape.group; h < (kv + 1) * p.shape.group; h++) {
        load_head(t, head, p, n, h, 0, x);
        i64 nk = head->s.nk, end = k0 < nk ? end_query(p, head->s, least(k0 + TILE, nk) - 1) : 0;
        for (i64 q0 = from_query(p, head->s, k0) / TILE * TILE; q0 < end; q0 += TILE) {
            i32 tile = tile_of(p, *head, q0, k0);
            if (tile != HIDDEN) add_queries(t, room, bits, p, *head, k0, q0, tile, sums, from, in, x);
        }
    }
    Quad ones = {{1, 1, 1, 1}};
    store(t, sums.k, ones, key_rows(p, dk, p.shape.k, head->s, kv, k0, p.shape.dim), from);
    store(t, sums.v, ones, key_rows(p, dv, p.shape.v, head->s, kv, k0, p.shape.dim_v), from);
}

KERNEL(attention_backward_key_features, 256, OPERAND(u8, dk, 0), OPERAND(u8, dv, 1), OPERAND(const u8, dout, 2),
       OPERAND(const u8, q, 3), OPERAND(const u8, k, 4), OPERAND(const u8, v, 5), OPERAND(const f32, lse, 6),
       OPERAND(const f32, delta, 7), OPERAND(const f32, slopes, 8), OPERAND(const u8, bias, 9), OPERAND(const i32, tiles, 10),
       OPERAND(const u64, words, 11), PARAMS(Features, p)) {
    SHARED(Quad, room, ROOM);
    SHARED(u16, bits, 2 * BITS);
    SHARED(Head, head, 1);
    Thread t = THREAD;
    Tensors in = {dout, q, k, v, lse, delta};
    Extras x = {slopes, nullptr, bias, tiles, words};
    for (u64 item = t.block; item < p.shape.items; item += t.blocks) {
        u64 heads = p.sequences * p.shape.kv_heads, n = item % heads;
        i64 k0 = (i64)(item / heads) * TILE;
        if (k0 >= sequence_of(p, n / p.shape.kv_heads).rows) continue;
        backward_key_features(t, room, bits, head, p, n / p.shape.kv_heads, n % p.shape.kv_heads, k0, t.block_y * WIDTH, dk, dv, in, x);
    }
}
