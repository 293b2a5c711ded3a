// Merging of parts of the keys. A warp owns a row.
#pragma once
#include "any.h"
#include "logarithm.h"

// Merge is the parameters, as gpu_merge.go fills them in.
struct Merge {
    u64 items;            // rows of all heads
    u64 heads, rows, seq; // rows of a head that count, of seq
    Strides out;
    u32 dim, type;
    u32 gradient, unused; // in lse, if not 0
};

// MergeRow is where a row lies: in lse, and in out.
struct MergeRow { u64 number, at; };

DEVICE MergeRow merge_row(Merge p, u64 item) {
    u64 head = item / p.rows, i = item % p.rows;
    return MergeRow{head * p.seq + i, head / p.heads * p.out.batch + head % p.heads * p.out.head + i * p.out.row};
}

// Weights is what the rows of the parts count, if at all, and the lse of both.
struct Weights {
    bool one, two;
    f32 w1, w2, lse;
};

DEVICE Weights weights_of(float lse1, float lse2) {
    bool one = lse1 != -infinity(), two = lse2 != -infinity(); // else it has no value
    if (!one || !two) return Weights{one, two, 1, 1, one ? lse1 : lse2};
    bool first = lse1 > lse2;
    float top = first ? lse1 : lse2, e = exp_of((first ? lse2 : lse1) - top);
    float lse = top == infinity() ? top : top + log_sum(0, 1 + e);
    float high = top == infinity() ? top - top : 1 / (1 + e), low = e * high;
    return Weights{true, true, first ? high : low, first ? low : high, lse};
}

KERNEL(attention_merge, 256, OPERAND(u8, out, 0), OPERAND(f32, lse, 1), OPERAND(const u8, out1, 2), OPERAND(const f32, lse1, 3),
       OPERAND(const u8, out2, 4), OPERAND(const f32, lse2, 5), PARAMS(Merge, p)) {
    Thread t = THREAD;
    u64 warps = t.threads / WARP;
    for (u64 item = t.block * warps + warp_of(t); item < p.items; item += t.blocks * warps) {
        MergeRow row = merge_row(p, item);
        Weights w = weights_of(lse1[row.number], lse2[row.number]);
        sync_warp(); // lse may be one of them
        if (lane_of(t) == 0) lse[row.number] = w.lse;
        for (u32 d = lane_of(t); d < p.dim; d += WARP) {
            float x = w.one ? w.w1 * any_at(out1, p.type, row.at + d) : 0;
            if (w.two) x += w.w2 * any_at(out2, p.type, row.at + d);
            any_put(out, p.type, row.at + d, x);
        }
    }
}

KERNEL(attention_merge_backward, 256, OPERAND(u8, dout1, 0), OPERAND(f32, dlse1, 1), OPERAND(const u8, dout, 2),
       OPERAND(const u8, out, 3), OPERAND(const f32, lse, 4), OPERAND(const u8, out1, 5), OPERAND(const f32, lse1, 6),
       OPERAND(const f32, dlse, 7), PARAMS(Merge, p)) {
    Thread t = THREAD;
    u64 warps = t.threads / WARP;
    for (u64 item = t.block * warps + warp_of(t); item < p.items; item += t.blocks * warps) {
        MergeRow row = merge_row(p, item);
        bool nothing = lse1[row.number] == -infinity();
        float w = exp_of(lse1[row.number] - lse[row.number]), sum = 0;
        for (u32 d = lane_of(t); d < p.dim; d += WARP)
            sum = fused_mul_add(any_at(dout, p.type, row.at + d), any_at(out1, p.type, row.at + d) - any_at(out, p.type, row.at + d), sum);
        sum = warp_sum(sum) + (p.gradient ? dlse[row.number] : 0);
        if (lane_of(t) == 0) dlse1[row.number] = nothing ? 0 : w * sum;
        for (u32 d = lane_of(t); d < p.dim; d += WARP)
            any_put(dout1, p.type, row.at + d, nothing ? 0 : w * any_at(dout, p.type, row.at + d));
    }
}
