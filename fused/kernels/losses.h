// Losses of elements and Dice, whose equations are in elementwise.go and dice.go. Vectors have fewer than 2^32 elements.
#pragma once

enum { LOSS_MSE = 1, LOSS_L1, LOSS_HUBER, LOSS_SMOOTH_L1, LOSS_BCE, LOSS_FOCAL };

struct LossParams {
    u32 n, part;                // elements, and those of a part, whose sum a block computes
    u32 form, gradients;
    u32 weighted, span;         // elements that share a weight
    u32 classes, positions;     // of the factors of BCE, 0 classes for none
    f32 delta, alpha, gamma, scale;
};

struct LossOf { float loss, slope; };

// Probability is σ(x), with 1 − σ(x) and log(1 + e^-|x|).
struct Probability { float p, rest, logs; };

DEVICE Probability probability_of(float x) {
    float e = exp_of(-magnitude(x)), big = 1.0f / (1.0f + e), small = e * big;
    float s = e / (2.0f + e), z = s * s; // log(1 + e) = 2·artanh(s), s ≤ 1/3
    float series = fused_mul_add(z, 1.0f / 15, 1.0f / 13);
    series = fused_mul_add(z, series, 1.0f / 11);
    series = fused_mul_add(z, series, 1.0f / 9);
    series = fused_mul_add(z, series, 1.0f / 7);
    series = fused_mul_add(z, series, 1.0f / 5);
    series = fused_mul_add(z, series, 1.0f / 3);
    float logs = fused_mul_add(2.0f * s * z, series, 2.0f * s);
    return x < 0.0f ? Probability{small, big, logs} : Probability{big, small, logs};
}

// power_of returns q^gamma for q from 0 to 1.
DEVICE float power_of(float q, float gamma) {
    if (gamma == 2.0f) return q * q;
    if (q == 0.0f) return 0.0f;
    return exp_of(-gamma * log_of(maximum(1.0f / q, 1.0f)));
}

DEVICE LossOf loss_of(float x, float t, float pos, LossParams p) {
    if (p.form >= LOSS_BCE) {
        Probability o = probability_of(x);
        float loss = pos * t * (o.logs + at_least(-x, 0.0f)) + (1.0f - t) * (o.logs + at_least(x, 0.0f));
        float g = (1.0f - t) * o.p - pos * t * o.rest;
        if (p.form == LOSS_BCE) return LossOf{loss, g};
        float q = o.p * (1.0f - t) + o.rest * t, factor = is_nan(q) ? q : power_of(q, p.gamma);
        float slope = q > 0.0f ? p.gamma * factor / q * o.p * o.rest * (1.0f - 2.0f * t) : 0.0f; // of the factor by x
        g = factor * g + slope * loss;
        loss *= factor;
        float alpha = p.alpha >= 0.0f ? p.alpha * t + (1.0f - p.alpha) * (1.0f - t) : 1.0f;
        return LossOf{alpha * loss, alpha * g};
    }
    float d = x - t, size = magnitude(d);
    if (p.form == LOSS_MSE) return LossOf{d * d, 2.0f * d};
    if (p.form == LOSS_L1) return LossOf{size, d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d};
    float near = at_most(size, p.delta), loss = near * (size - 0.5f * near), g = at_least(at_most(d, p.delta), -p.delta);
    if (p.form == LOSS_HUBER) return LossOf{loss, g};
    return LossOf{loss / p.delta, g / p.delta};
}

template <class T>
DEVICE void elementwise(Thread t, GLOBAL T* dx, GLOBAL f32* parts, GLOBAL const T* x, GLOBAL const T* targets, GLOBAL const f32* factors,
                        GLOBAL const f32* weights, LossParams p, GROUP float* room) {
    UNROLL_1 for (u32 part = t.block; part * p.part < p.n; part += t.blocks) {
        u32 first = part * p.part, n = least(p.part, p.n - first);
        float sum = 0;
        UNROLL_1 for (u32 k = t.local; k < n; k += t.threads) {
            u32 i = first + k;
            float w = p.weighted ? weights[i / p.span] : 1.0f, g = 0;
            if (w != 0.0f) {
                float pos = p.classes ? factors[i / p.positions % p.classes] : 1.0f;
                LossOf l = loss_of(widen(x[i]), widen(targets[i]), pos, p);
                sum = fused_mul_add(w, l.loss, sum);
                g = w * l.slope;
            }
            if (p.gradients) dx[i] = narrow<T>(g * p.scale);
        }
        sum = block_sum(t, sum, room);
        if (t.local == 0) parts[part] = sum;
    }
}

struct DiceParams {
    u32 rows, cols;
    u32 squared, gradients, weighted;
    f32 smooth, scale;
    u32 unused;
};

template <class T>
DEVICE void dice(Thread t, GLOBAL T* dx, GLOBAL f32* parts, GLOBAL const T* x, GLOBAL const T* targets, GLOBAL const f32* weights, DiceParams p,
                 GROUP float* room) {
    UNROLL_1 for (u32 row = t.block; row < p.rows; row += t.blocks) {
        u32 first = row * p.cols;
        float weight = p.weighted ? weights[row] : 1.0f, overlap = 0, sizes = 0, onTarget = 0, always = 0, onP = 0;
        if (weight != 0.0f) {
            UNROLL_1 for (u32 i = t.local; i < p.cols; i += t.threads) {
                float y = probability_of(widen(x[first + i])).p, of = widen(targets[first + i]);
                overlap = fused_mul_add(y, of, overlap);
                sizes += p.squared ? y * y + of * of : y + of;
            }
            overlap = block_sum(t, overlap, room), sizes = block_sum(t, sizes, room);
            float top = 2.0f * overlap + p.smooth, bottom = sizes + p.smooth, k = weight * p.scale;
            if (t.local == 0) parts[row] = weight * (1.0f - top / bottom);
            onTarget = -2.0f * (k / bottom);
            always = k / bottom * (top / bottom);
            if (p.squared) onP = 2.0f * always, always = 0.0f;
        } else if (t.local == 0) {
            parts[row] = 0.0f;
        }
        if (!p.gradients) continue;
        UNROLL_1 for (u32 i = t.local; i < p.cols; i += t.threads) {
            float g = 0;
            if (weight != 0.0f) {
                Probability o = probability_of(widen(x[first + i]));
                g = (onTarget * widen(targets[first + i]) + always + onP * o.p) * o.p * o.rest;
            }
            dx[first + i] = narrow<T>(g);
        }
    }
}

#define LOSSES(T)                                                                                                       \
    KERNEL(fused_elementwise_##T, 256, OPERAND(T, dx, 0), OPERAND(f32, parts, 1), OPERAND(const T, x, 2),               \
           OPERAND(const T, targets, 3), OPERAND(const f32, factors, 4), OPERAND(const f32, weights, 5),                \
           PARAMS(LossParams, p)) {                                                                                     \
        SHARED(float, room, 8);                                                                                         \
        elementwise<T>(THREAD, dx, parts, x, targets, factors, weights, p, room);                                       \
    }                                                                                                                   \
    KERNEL(fused_dice_##T, 256, OPERAND(T, dx, 0), OPERAND(f32, parts, 1), OPERAND(const T, x, 2),                      \
           OPERAND(const T, targets, 3), OPERAND(const f32, weights, 4), PARAMS(DiceParams, p)) {                       \
        SHARED(float, room, 8);                                                                                         \
        dice<T>(THREAD, dx, parts, x, targets, weights, p, room);                                                       \
    }
FOR_FLOATS(LOSSES)

// ---- the sum of the parts as two floats, the second of which is what the first lacks

struct Twice { float sum, rest; };

DEVICE Twice twice_add(Twice a, float x) {
    float s = a.sum + x, y = s - a.sum;
    float rest = a.rest + ((a.sum - (s - y)) + (x - y)); // what s lacks (Knuth)
    return Twice{s, is_finite(s) ? rest : 0.0f};
}

KERNEL(fused_loss_total, 256, OPERAND(f32, sum, 0), OPERAND(const f32, parts, 1), PARAMS(u32, n)) {
    SHARED(float, some, 256);
    SHARED(float, rests, 256);
    Thread t = THREAD;
    Twice mine = {0, 0};
    for (u32 i = t.local; i < n; i += t.threads) mine = twice_add(mine, parts[i]);
    some[t.local] = mine.sum, rests[t.local] = mine.rest;
    sync_threads();
    if (t.local > 0) return;
    for (u32 i = 1; i < t.threads; i++) {
        mine = twice_add(mine, some[i]);
        mine.rest += rests[i];
    }
    float all = mine.sum + mine.rest, left = mine.rest - (all - mine.sum);
    sum[0] = all, sum[1] = is_finite(all) ? left : 0.0f;
}
