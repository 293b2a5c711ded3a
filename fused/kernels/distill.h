// The divergence of a student's softmax from a teacher's, from the logits of head.h.
#pragma once

// TeacherStats is teacherStats of distill_job.go.
struct TeacherStats {
    RowStats of;
    f32 gap_hi, gap_lo; // Σ of the exponentials times what the teacher's logits are above the student's
};

// head_gap returns Σ exp(y[j] − base)·(y[j] − z[j]) on every thread, over the positive exponentials.
DEVICE Twofold head_gap(Thread t, GLOBAL const f32* y, GLOBAL const f32* z, u64 vocab, float base, GROUP Twofold* scratch) {
    Twofold total = {0, 0};
    UNROLL_1 for (u64 j = t.local; j < vocab; j += t.threads) {
        float power = exp_of(y[j] - base);
        if (power != 0) total = twofold_sum(total, Twofold{power * (y[j] - z[j]), 0});
    }
    return twofold_total(t, total, scratch);
}

// pair_fold adds the logits of a tile of student and teacher to the statistics of the rows, and after the last tile has
// the losses.
DEVICE void pair_fold(Thread t, GLOBAL f32* logits, GLOBAL f32* others, GLOBAL RowStats* stats, GLOBAL TeacherStats* teachers,
                      GLOBAL f32* losses, GLOBAL const f32* weights, HeadParams p, float cap, float over, GROUP float* peaks,
                      GROUP Twofold* sums) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    GLOBAL f32* y = others + t.block * p.vocab;
    float weight = weight_of(weights, t.block, p);
    if (weight == 0) {
        if (t.local == 0 && p.last) losses[t.block] = 0;
        return;
    }
    RowStats s = stats_begun();
    TeacherStats q = {stats_begun(), 0, 0};
    if (p.first) {
        s = stats[t.block];
        q = teachers[t.block];
    }
    head_cap(t, z, p, p.cap);
    HeadParams teacher = p;
    teacher.over = over;
    head_cap(t, y, teacher, cap);
    float factor, base = stats_rise(&q.of, maximum(q.of.peak, head_peak(t, y, p.vocab, peaks)), &factor);
    Twofold sum = twofold_sum(Twofold{q.of.hi, q.of.lo}, head_total(t, y, p.vocab, base, sums));
    Twofold before = {0, 0}; // where the factor is 0, of an infinite gap too
    if (factor != 0) before = Twofold{q.gap_hi * factor, q.gap_lo * factor};
    Twofold gap = twofold_sum(before, head_gap(t, y, z, p.vocab, base, sums));
    if (!is_finite(gap.hi)) gap.lo = 0;
    q.of.hi = sum.hi;
    q.of.lo = sum.lo;
    q.gap_hi = gap.hi;
    q.gap_lo = gap.lo;
    stats_fold(t, &s, z, p.vocab, peaks, sums);
    if (t.local != 0) return;
    stats[t.block] = s;
    teachers[t.block] = q;
    if (!p.last) return;
    float total = q.of.hi + q.of.lo, loss = (q.gap_hi + q.gap_lo) / total - ((q.of.peak - s.peak) + (log_of(total) - log_of(s.hi + s.lo)));
    losses[t.block] = weight * (loss < 0 ? 0.0f : loss);
}

// pair_tile makes gradients of the student's logits, which with the teacher's are computed again.
DEVICE void pair_tile(Thread t, GLOBAL f32* logits, GLOBAL f32* others, GLOBAL const RowStats* stats,
                      GLOBAL const TeacherStats* teachers, GLOBAL const f32* weights, HeadParams p, float cap, float over) {
    GLOBAL f32* z = logits + t.block * p.vocab;
    GLOBAL f32* y = others + t.block * p.vocab;
    float weight = weight_of(weights, t.block, p), scale = p.scale * weight;
    RowStats s = stats[t.block];
    TeacherStats q = teachers[t.block];
    Slopes slopes = slopes_of(s.peak, scale / (s.hi + s.lo));
    slopes.less = y;
    slopes.less_base = q.of.peak;
    slopes.less_factor = scale / (q.of.hi + q.of.lo);
    if (weight != 0) {
        head_cap(t, z, p, p.cap);
        HeadParams teacher = p;
        teacher.over = over;
        head_cap(t, y, teacher, cap);
    }
    head_row(t, z, narrow_row(t, logits, p), weight == 0, slopes, p);
}

struct PairParams {
    HeadParams student;
    f32 cap, over; // the teacher's
};

#define PAIR(threads)                                                                                              \
    KERNEL(fused_distill_fold_##threads, threads, OPERAND(f32, logits, 0), OPERAND(f32, others, 1),                \
           OPERAND(RowStats, stats, 2), OPERAND(TeacherStats, teachers, 3), OPERAND(f32, losses, 4),               \
           OPERAND(const f32, weights, 5), PARAMS(PairParams, p)) {                                                \
        HEAD_SCRATCH(threads);                                                                                     \
        pair_fold(THREAD, logits, others, stats, teachers, losses, weights, p.student, p.cap, p.over, peaks, sums); \
    }                                                                                                              \
    KERNEL(fused_distill_tile_##threads, threads, OPERAND(f32, logits, 0), OPERAND(f32, others, 1),                \
           OPERAND(const RowStats, stats, 2), OPERAND(const TeacherStats, teachers, 3), OPERAND(const f32, weights, 4), \
           PARAMS(PairParams, p)) {                                                                                \
        pair_tile(THREAD, logits, others, stats, teachers, weights, p.student, p.cap, p.over);                     \
    }
HEAD_KERNELS(PAIR)
