// The gradients in a bias and in sinks.
#pragma once
#include "featured_backward.h"

// sum_rows adds what the threads of equal columns have, in the order of their rows.
DEVICE float sum_rows(Thread t, GROUP Quad* room, float x) {
    GROUP f32* of = (GROUP f32*)room;
    sync_threads(); // all have read what was there
    of[t.local] = x;
    sync_threads();
    float sum = 0;
    for (u32 y = 0; y < 16; y++) sum += of[y * 16 + column_at(t)];
    return sum;
}

// fold adds over the rows or columns of a tile that a bias is broadcast over; the
// sums are then the first ones.
DEVICE void fold(Thread t, GROUP Quad* room, CONSTANT Features& p, PRIVATE Scores& s) {
    if (p.bias[3] == 0)
        UNROLL for (u32 r = 0; r < 4; r++) s.x[r][0] = half_warp_sum((s.x[r][0] + s.x[r][1]) + (s.x[r][2] + s.x[r][3]));
    if (p.bias[2] == 0)
        UNROLL for (u32 c = 0; c < 4; c++) s.x[0][c] = sum_rows(t, room, (s.x[0][c] + s.x[1][c]) + (s.x[2][c] + s.x[3][c]));
}

// add_bias adds the gradients of tiles of a head: of one row of tiles or of all, if the
// bias is broadcast over queries, and of one column or of all.
DEVICE void add_bias(Thread t, GROUP Quad* room, GROUP u16* kept, CONSTANT Features& p, GROUP const Head& head, i64 q_tile, i64 k_tile,
                     PRIVATE Scores& sums, Tensors in, Extras x) {
    i64 q_end = p.bias[2] == 0 ? head.s.nq : least(q_tile + TILE, head.s.nq);
    for (i64 q0 = p.bias[2] == 0 ? 0 : q_tile; q0 < q_end; q0 += TILE) {
        Query query[4];
        load_queries(t, p, query, head, q0, in);
        i64 k_end = end_key(p, head.s, least(q0 + TILE, head.s.nq) - 1), k0 = first_key(p, head.s, q0) / TILE * TILE;
        if (p.bias[3] != 0) k0 = greatest(k0, k_tile), k_end = least(k_end, k_tile + TILE);
        for (; k0 < k_end; k0 += TILE) {
            i32 tile = tile_of(p, head, q0, k0);
            if (tile == HIDDEN) continue;
            Scores ds;
            query_grads(t, room, kept, p, head, q0, k0, seen_keys(t, p, head, x, tile, q0, k0), ds, query, in, x, true);
            UNROLL for (u32 r = 0; r < 4; r++)
                UNROLL for (u32 c = 0; c < 4; c++) sums.x[r][c] += ds.x[r][c];
            sync_threads(); // all have read kept
        }
    }
}

// A block owns a tile of the gradient, and adds over all that the bias is broadcast to
// in the order of sequences, heads, queries and keys.
KERNEL(attention_bias_features, 256, OPERAND(f32, dbias, 0), OPERAND(const u8, dout, 1), OPERAND(const u8, q, 2),
       OPERAND(const u8, k, 3), OPERAND(const u8, v, 4), OPERAND(const f32, lse, 5), OPERAND(const f32, delta, 6),
       OPERAND(const f32, slopes, 7), OPERAND(const u8, bias, 8), OPERAND(const i32, tiles, 9), OPERAND(const u64, words, 10),
       PARAMS(Features, p)) {
    SHARED(Quad, room, ROOM);
    SHARED(u16, kept, BITS);
    SHARED(Head, of, 1);
    Thread t = THREAD;
    Tensors in = {dout, q, k, v, lse, delta};
    Extras x = {slopes, nullptr, bias, tiles, words};
    for (u64 item = t.block; item < p.shape.items; item += t.blocks) {
        u64 columns = (p.dims[3] + TILE - 1) / TILE, rows = (p.dims[2] + TILE - 1) / TILE, head = item / columns / rows;
        i64 q_tile = (i64)(item / columns % rows) * TILE, k_tile = (i64)(item % columns) * TILE;
        u64 n = head / p.dims[1], h = head % p.dims[1]; // of the launch
        Scores sums = Scores{};
        for (u64 ns = p.bias[0] == 0 ? 0 : n; ns < (p.bias[0] == 0 ? p.sequences : n + 1); ns++)
            for (u64 hs = p.bias[1] == 0 ? 0 : h; hs < (p.bias[1] == 0 ? p.shape.heads : h + 1); hs++) {
                load_head(t, of, p, ns, hs, 0, x);
                add_bias(t, room, kept, p, of[0], q_tile, k_tile, sums, in, x);
            }
        fold(t, room, p, sums);
        u64 at = (p.dims[0] == 1 ? 0 : (p.first + n) * p.dims[1] * p.dims[2] * p.dims[3]) + h * p.dims[2] * p.dims[3];
        UNROLL for (u32 r = 0; r < 4; r++)
            UNROLL for (u32 c = 0; c < 4; c++) {
                u64 i = (u64)q_tile + row_at(t) + r, j = (u64)k_tile + column_at(t) + 16 * c;
                if (i >= p.dims[2] || j >= p.dims[3]) continue;
                GLOBAL f32* to = dbias + at + i * p.dims[3] + j;
                *to = (p.more && p.bias[0] == 0 ? *to : 0) + sums.x[r][c];
            }
    }
}

// delta_features sets delta, in a tile of queries, to the means of the gradients in their
// weights, weighted by these: dout · out without the rounding of out and of lse.
DEVICE void delta_features(Thread t, GROUP Quad* room, GROUP u16* kept, CONSTANT Features& p, GROUP const Head& head, i64 q0, GLOBAL f32* delta,
                           Tensors in, Extras x) {
    u64 row = row_of(p, head, q0);
    float lse2[4], sums[4] = {0, 0, 0, 0}, totals[4] = {0, 0, 0, 0};
    UNROLL for (u32 r = 0; r < 4; r++) lse2[r] = query_of(in.lse + row, in.lse + row, row_at(t) + r, within(head.s.nq - q0, TILE)).lse2;
    i64 end = end_key(p, head.s, least(q0 + TILE, head.s.nq) - 1);
    for (i64 k0 = first_key(p, head.s, q0) / TILE * TILE; k0 < end; k0 += TILE) {
        i32 tile = tile_of(p, head, q0, k0);
        if (tile == HIDDEN) continue;
        SeenBits seen = seen_keys(t, p, head, x, tile, q0, k0);
        Scores w, ds;
        query_products(t, room, kept, p, head, q0, k0, w, ds, in);
        UNROLL for (u32 r = 0; r < 4; r++) {
            float sum = 0, total = 0;
            UNROLL for (u32 c = 0; c < 4; c++) {
                u32 i = row_at(t) + r, j = column_at(t) + 16 * c;
                if (!has(seen.row[r], j)) continue;
                float e = exp2_of(score_of(p, head.slope, tile_at(p, head, q0, k0), x, w.x[r][c], i, j).x - lse2[r]);
                total += e;
                if (!p.dropout) sum = fused_mul_add(e, ds.x[r][c], sum);
                else if (has(kept, i, j)) sum = fused_mul_add(e, ds.x[r][c] * p.keep, sum);
            }
            sums[r] += half_warp_sum(sum);
            totals[r] += half_warp_sum(total);
        }
        sync_threads(); // all have read kept
    }
    UNROLL for (u32 r = 0; r < 4; r++) {
        if (p.sunk) totals[r] += exp2_of(x.sinks[head.h] * 1.44269502f - lse2[r]);
        if (totals[r] != 0) sums[r] /= totals[r]; // else the query sees nothing
        if (column_at(t) == 0 && q0 + row_at(t) + r < head.s.nq) delta[row + row_at(t) + r] = sums[r];
    }
}

KERNEL(attention_delta_features, 256, OPERAND(f32, delta, 0), OPERAND(const u8, dout, 1), OPERAND(const u8, q, 2), OPERAND(const u8, k, 3),
       OPERAND(const u8, v, 4), OPERAND(const f32, lse, 5), OPERAND(const f32, slopes, 6), OPERAND(const f32, sinks, 7),
       OPERAND(const u8, bias, 8), OPERAND(const i32, tiles, 9), OPERAND(const u64, words, 10), PARAMS(Features, p)) {
    SHARED(Quad, room, ROOM);
    SHARED(u16, kept, BITS);
    SHARED(Head, head, 1);
    Thread t = THREAD;
    Tensors in = {dout, q, k, v, lse, nullptr};
    Extras x = {slopes, sinks, bias, tiles, words};
    for (u64 item = t.block; item < p.shape.items; item += t.blocks) {
        Part at = query_part(p, t, item);
        if (at.q0 < 0) continue;
        load_head(t, head, p, at.n, at.h, at.q0, x);
        delta_features(t, room, kept, p, head[0], at.q0, delta, in, x);
    }
}

struct Sinks { u64 heads, batch, rows, stride; }; // rows of a batch element that count, of stride

// A block owns the gradient of a head's sink: minus the sum of its weights times delta.
KERNEL(attention_sinks, 256, OPERAND(f32, dsinks, 0), OPERAND(const f32, sinks, 1), OPERAND(const f32, lse, 2),
       OPERAND(const f32, delta, 3), PARAMS(Sinks, p)) {
    SHARED(f32, room, 8);
    Thread t = THREAD;
    for (u64 h = t.block; h < p.heads; h += t.blocks) {
        float sum = 0;
        for (u64 b = 0; b < p.batch; b++)
            for (u64 i = t.local; i < p.rows; i += t.threads) {
                u64 row = (b * p.heads + h) * p.stride + i;
                float w = lse[row] == -infinity() ? 0 : exp_of(sinks[h] - lse[row]);
                if (w != 0) sum -= w * delta[row];
            }
        sum = block_sum(t, sum, room);
        if (t.local == 0) dsinks[h] = sum;
    }
}
