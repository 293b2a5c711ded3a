// Splits of the keys. Where few tiles of queries would leave most of a device idle, a block takes one
// split of the keys that its tile sees (Flash-Decoding, Dao et al. 2023). It leaves its sums, not yet
// divided, and the state of its softmax in float32, and attention_join makes out and lse of all splits.
#pragma once
#include "any.h"
#include "forward.h"

// Split is the parameters of a launch for the splits of tiles, as gpu_split.go fills them in: item i is
// split i % splits of tile i / splits.
struct Split {
    Shape shape;
    u32 splits, unused;
};

// split_of returns split number n of some keys, in whole steps of `step` keys. It may be empty.
DEVICE Keys split_of(Keys all, u32 splits, u64 n, i64 step) {
    i64 steps = (greatest(all.end - all.begin, (i64)0) + step - 1) / step;
    i64 most = (steps + splits - 1) / splits * step, begin = all.begin + (i64)n * most;
    return Keys{begin, least(all.end, begin + most)};
}

// left_rows returns where a split leaves its sums of n rows of results, from row number `row` of all on.
DEVICE Rows<f32> left_rows(GLOBAL f32* sums, u64 row, u32 n, u32 dim) { return Rows<f32>{sums + row * dim, dim, n, dim}; }

// leave writes sums, in columns from `from` on, and for each row of states the greatest score and the sum of weights.
DEVICE void leave(Thread t, PRIVATE Softmax& state, PRIVATE const Sums& sums, Rows<f32> to, u32 from, GLOBAL f32* states) {
    UNROLL for (u32 r = 0; r < 4; r++) {
        float sum = half_warp_sum(state.sum[r]);
        if (from != 0 || column_at(t) != 0 || row_at(t) + r >= to.n) continue;
        states[2 * (row_at(t) + r)] = state.most[r];
        states[2 * (row_at(t) + r) + 1] = sum;
    }
    store(t, sums, Quad{{1, 1, 1, 1}}, to, from);
}

// Join is the parameters of attention_join, as gpu_split.go fills them in.
struct Join {
    u64 items, all;        // rows that count; rows of a split
    u64 heads, rows, seq;  // rows of a head that count, of seq
    Strides out;
    u32 dim, type;
    u32 splits, want_lse;
};

enum { JOIN_COLUMNS = 4 }; // of a lane at a time

// A warp owns a row. It adds the splits in their order.
KERNEL(attention_join, 256, OPERAND(u8, out, 0), OPERAND(f32, lse, 1), OPERAND(const f32, sums, 2), OPERAND(const f32, states, 3),
       PARAMS(Join, p)) {
    Thread t = THREAD;
    u64 warps = t.threads / WARP;
    for (u64 item = t.block * warps + warp_of(t); item < p.items; item += t.blocks * warps) {
        u64 head = item / p.rows, i = item % p.rows, number = head * p.seq + i;
        u64 to = head / p.heads * p.out.batch + head % p.heads * p.out.head + i * p.out.row;
        float most = -infinity(), sum = 0;
        for (u32 s = 0; s < p.splits; s++) most = maximum(states[2 * (s * p.all + number)], most);
        float base = most == -infinity() ? 0 : most; // −Inf − −Inf would be NaN
        for (u32 s = 0; s < p.splits; s++) {
            GLOBAL const f32* state = states + 2 * (s * p.all + number);
            sum = fused_mul_add(exp2_of(state[0] - base), state[1], sum);
        }
        float factor = 1 / sum;
        for (u32 d = lane_of(t); d < p.dim; d += JOIN_COLUMNS * WARP) {
            float x[JOIN_COLUMNS] = {0, 0, 0, 0};
            for (u32 s = 0; s < p.splits; s++) {
                u64 row = s * p.all + number;
                float weight = exp2_of(states[2 * row] - base);
                UNROLL for (u32 c = 0; c < JOIN_COLUMNS; c++)
                    if (d + c * WARP < p.dim) x[c] = fused_mul_add(weight, sums[row * p.dim + d + c * WARP], x[c]);
            }
            UNROLL for (u32 c = 0; c < JOIN_COLUMNS; c++) // a row that saw nothing, or only scores of −Inf, is 0
                if (d + c * WARP < p.dim) any_put(out, p.type, to + d + c * WARP, sum == 0 ? 0 : x[c] * factor);
        }
        if (p.want_lse && lane_of(t) == 0) lse[number] = log_sum(most, sum);
    }
}
