// Log-probabilities of targets, from the logits of head.h.
#pragma once

// probs_fold adds the logits of a tile to the statistics of the rows, and keeps those of the targets. After the last
// tile it has the results. A target's logit is read and written by the same thread each time.
DEVICE void probs_fold(Thread t, GLOBAL f32* logits, GLOBAL RowStats* stats, GLOBAL f32* logp, GLOBAL f32* lse,
                       GLOBAL const i32* targets, HeadParams p, GROUP float* peaks, GROUP Twofold* sums) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    logp += t.block * p.targets;
    targets += t.block * p.targets;
    RowStats s = stats_begun();
    if (p.first) s = stats[t.block];
    head_cap(t, z, p, p.cap);
    stats_fold(t, &s, z, p.vocab, peaks, sums);
    float total = s.hi + s.lo;
    for (u32 k = t.local; k < p.targets; k += t.threads) {
        i32 target = targets[k];
        float x = target < 0 || !p.first ? 0.0f : logp[k];
        if (target >= 0 && (u64)target >= p.first && (u64)target - p.first < p.vocab) x = z[(u64)target - p.first];
        logp[k] = p.last && target >= 0 ? -head_loss(s.peak, x, total) : x;
    }
    if (t.local != 0) return;
    stats[t.block] = s;
    if (p.last) lse[t.block] = head_loss(s.peak, 0, total);
}

// probs_tile makes gradients of logits that are computed again.
DEVICE void probs_tile(Thread t, GLOBAL f32* logits, GLOBAL const f32* dlogp, GLOBAL const f32* dlse, GLOBAL const f32* lse,
                       GLOBAL const i32* targets, HeadParams p) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    dlogp += t.block * p.targets;
    targets += t.block * p.targets;
    Twofold sum = {p.slopes ? dlse[t.block] : 0.0f, 0};
    bool ignored = !p.slopes;
    for (u32 k = 0; k < p.targets; k++) {
        if (targets[k] < 0) continue;
        sum = twofold_sum(sum, Twofold{-dlogp[k], 0});
        ignored = false;
    }
    if (!ignored) head_cap(t, z, p, p.cap);
    Slopes s = slopes_of(lse[t.block], (sum.hi + sum.lo) * p.over);
    s.targets = targets;
    s.hits = dlogp;
    s.count = p.targets;
    s.hit = -p.over;
    head_row(t, z, narrow_row(t, logits, p), ignored, s, p);
}

#define PROBS(threads)                                                                                             \
    KERNEL(fused_log_probs_fold_##threads, threads, OPERAND(f32, logits, 0), OPERAND(RowStats, stats, 1),          \
           OPERAND(f32, logp, 2), OPERAND(f32, lse, 3), OPERAND(const i32, targets, 4), PARAMS(HeadParams, p)) {   \
        HEAD_SCRATCH(threads);                                                                                     \
        probs_fold(THREAD, logits, stats, logp, lse, targets, p, peaks, sums);                                     \
    }                                                                                                              \
    KERNEL(fused_log_probs_tile_##threads, threads, OPERAND(f32, logits, 0), OPERAND(const f32, dlogp, 1),         \
           OPERAND(const f32, dlse, 2), OPERAND(const f32, lse, 3), OPERAND(const i32, targets, 4),                \
           PARAMS(HeadParams, p)) {                                                                                \
        probs_tile(THREAD, logits, dlogp, dlse, lse, targets, p);                                                  \
    }
HEAD_KERNELS(PROBS)
