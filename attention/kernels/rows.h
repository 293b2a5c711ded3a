// Copies of rows between layouts and types, for calls over ranks. A warp owns a piece of a row.
#pragma once
#include "any.h"

// RowsCopy is the parameters, as gpu_rows.go fills them in.
struct RowsCopy {
    u64 items, pieces; // of all rows, and of one
    u64 heads, n, dim;
    Strides to, from;
    u32 to_type, from_type;
    u32 add, clear; // if not 0
};

enum { ROWS_PIECE = 1024 }; // elements

KERNEL(attention_rows, 256, OPERAND(u8, to, 0), OPERAND(const u8, from, 1), PARAMS(RowsCopy, p)) {
    Thread t = THREAD;
    u64 warps = t.threads / WARP;
    for (u64 item = t.block * warps + warp_of(t); item < p.items; item += t.blocks * warps) {
        u64 row = item / p.pieces, first = item % p.pieces * ROWS_PIECE, end = least(first + ROWS_PIECE, p.dim);
        u64 head = row / p.n, i = row % p.n, b = head / p.heads, h = head % p.heads;
        u64 dst = b * p.to.batch + h * p.to.head + i * p.to.row;
        u64 src = b * p.from.batch + h * p.from.head + i * p.from.row;
        for (u64 d = first + lane_of(t); d < end; d += WARP) {
            float x = p.clear ? 0 : any_at(from, p.from_type, src + d);
            if (p.add) x += any_at(to, p.to_type, dst + d);
            any_put(to, p.to_type, dst + d, x);
        }
    }
}
