// Softmax cross-entropy of the logits of head.h.
#pragma once

// loss_of returns the loss of a row with the statistics s.
DEVICE float loss_of(RowStats s, HeadParams p) {
    float total = s.hi + s.lo, loss = head_loss(s.peak, s.aim, total);
    if (p.z_loss != 0) {
        float lse = head_loss(s.peak, 0, total);
        loss += p.z_loss * lse * lse;
    }
    return loss;
}

// loss_slopes returns how the logits of a row become gradients.
DEVICE Slopes loss_slopes(RowStats s, GLOBAL const i32* target, float weight, HeadParams p) {
    float total = s.hi + s.lo, scale = p.scale * weight;
    Slopes slopes = slopes_of(s.peak, scale / total);
    if (p.z_loss != 0) slopes.factor = scale * (1.0f + 2.0f * p.z_loss * head_loss(s.peak, 0, total)) / total;
    slopes.shift = -scale * p.share;
    slopes.targets = target;
    slopes.count = 1;
    slopes.hit = scale * (1.0f - p.smoothing);
    return slopes;
}

// loss_aim returns what logits add to the aim of their row.
DEVICE float loss_aim(Thread t, GLOBAL const f32* z, i32 target, HeadParams p, GROUP Twofold* sums) {
    float aim = 0;
    if ((u64)target >= p.first && (u64)target - p.first < p.vocab) aim = (1.0f - p.smoothing) * z[(u64)target - p.first];
    if (p.smoothing != 0) aim = fused_mul_add(p.share, head_sum(t, z, p.vocab, sums), aim);
    return aim;
}

DEVICE void loss_whole(Thread t, GLOBAL f32* logits, GLOBAL f32* losses, GLOBAL const i32* targets, GLOBAL const f32* weights,
                       HeadParams p, GROUP float* peaks, GROUP Twofold* sums) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    i32 target = targets[t.block];
    float loss = 0, weight = 1;
    RowStats s = stats_begun();
    if (target >= 0) {
        head_cap(t, z, p, p.cap);
        s.aim = loss_aim(t, z, target, p, sums);
        stats_fold(t, &s, z, p.vocab, peaks, sums);
        weight = weight_of(weights, t.block, p);
        loss = weight * loss_of(s, p);
    }
    if (t.local == 0) losses[t.block] = loss;
    if (p.gradients) head_row(t, z, narrow_row(t, logits, p), target < 0, loss_slopes(s, targets + t.block, weight, p), p);
}

// loss_fold adds the logits of a tile to the statistics of the rows, and after the last tile has the losses.
DEVICE void loss_fold(Thread t, GLOBAL f32* logits, GLOBAL RowStats* stats, GLOBAL f32* losses, GLOBAL const i32* targets,
                      GLOBAL const f32* weights, HeadParams p, GROUP float* peaks, GROUP Twofold* sums) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    i32 target = targets[t.block];
    if (target < 0) {
        if (t.local == 0 && p.last) losses[t.block] = 0;
        return;
    }
    RowStats s = stats_begun();
    if (p.first) s = stats[t.block];
    head_cap(t, z, p, p.cap);
    s.aim += loss_aim(t, z, target, p, sums);
    stats_fold(t, &s, z, p.vocab, peaks, sums);
    if (t.local != 0) return;
    stats[t.block] = s;
    if (p.last) losses[t.block] = weight_of(weights, t.block, p) * loss_of(s, p);
}

// loss_tile makes gradients of logits that are computed again.
DEVICE void loss_tile(Thread t, GLOBAL f32* logits, GLOBAL const RowStats* stats, GLOBAL const i32* targets,
                      GLOBAL const f32* weights, HeadParams p) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    bool ignored = targets[t.block] < 0;
    RowStats s = stats[t.block];
    if (!ignored) head_cap(t, z, p, p.cap);
    head_row(t, z, narrow_row(t, logits, p), ignored, loss_slopes(s, targets + t.block, weight_of(weights, t.block, p), p), p);
}

#define LOSS(threads)                                                                                              \
    KERNEL(fused_cross_entropy_##threads, threads, OPERAND(f32, logits, 0), OPERAND(f32, losses, 1),               \
           OPERAND(const i32, targets, 2), OPERAND(const f32, weights, 3), PARAMS(HeadParams, p)) {                \
        HEAD_SCRATCH(threads);                                                                                     \
        loss_whole(THREAD, logits, losses, targets, weights, p, peaks, sums);                                      \
    }                                                                                                              \
    KERNEL(fused_cross_entropy_fold_##threads, threads, OPERAND(f32, logits, 0), OPERAND(RowStats, stats, 1),      \
           OPERAND(f32, losses, 2), OPERAND(const i32, targets, 3), OPERAND(const f32, weights, 4),                \
           PARAMS(HeadParams, p)) {                                                                                \
        HEAD_SCRATCH(threads);                                                                                     \
        loss_fold(THREAD, logits, stats, losses, targets, weights, p, peaks, sums);                                \
    }                                                                                                              \
    KERNEL(fused_cross_entropy_tile_##threads, threads, OPERAND(f32, logits, 0), OPERAND(const RowStats, stats, 1), \
           OPERAND(const i32, targets, 2), OPERAND(const f32, weights, 3), PARAMS(HeadParams, p)) {                \
        loss_tile(THREAD, logits, stats, targets, weights, p);                                                     \
    }
HEAD_KERNELS(LOSS)
