// Mixtures of experts: the choice of experts and its gradient, and the rows that experts share. A warp takes a row.
#pragma once

// ---- scores, in the steps of internal/rowwise/route.go, each rounded once, so that choices are those of the CPU.

// stepwise_exp is exp_of without fused steps.
DEVICE float stepwise_exp(float x) {
    if (!(x > -104.0f)) return is_nan(x) ? x : 0.0f;
    if (x > 88.73f) return bits_float(0x7f800000u);
    float t = x * 1.44269504088896341f + 12582912.0f;
    i32 n = (i32)float_bits(t) - 0x4b400000;
    t -= 12582912.0f;
    float r = x - t * 0.693359375f;
    r -= t * -2.12194440e-4f;
    float p = 1.9875691500e-4f * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    i32 lower = n >> 1;
    return p * bits_float((u32)(lower + 127) << 23) * bits_float((u32)(n - lower + 127) << 23);
}

struct Sigmoid { float s, rest; }; // σ(z) and 1 - σ(z)

DEVICE Sigmoid sigmoid_of(float z) {
    float e = stepwise_exp(-magnitude(z));
    float d = 1.0f / (1.0f + e);
    if (z > 0.0f) return Sigmoid{d, e * d};
    return Sigmoid{e * d, d};
}

struct Softmax {
    float peak, total;

    DEVICE_MEMBER float of(float z) const { return stepwise_exp(z - peak) / total; }
};

struct RouteParams {
    u64 rows;
    u32 experts, chosen, sigmoid, normalize;
    f32 scale;
    u32 some; // ROUTE_ bits
};

enum { ROUTE_BIAS = 1, ROUTE_DWEIGHTS = 2, ROUTE_AUX = 4 };

#define NEGATIVE_INFINITY bits_float(0xff800000u)

template <class T> DEVICE Softmax route_softmax(u32 lane, GLOBAL const T* z, u32 experts) {
    float peak = NEGATIVE_INFINITY;
    for (u32 e = lane; e < experts; e += WARP) peak = maximum(widen(z[e]), peak); // not NaN
    Softmax s = {warp_max(peak), 0.0f};
    for (u32 e = lane; e < experts; e += WARP) s.total += stepwise_exp(widen(z[e]) - s.peak);
    s.total = warp_sum(s.total);
    return s;
}

// Shares is shares of route_job.go.
struct Shares {
    u32 sigmoid;
    float base, total;

    DEVICE_MEMBER float exponent(float z) const { return sigmoid && z > 0.0f ? 0.0f : z; }
    DEVICE_MEMBER float of(float z) const {
        float y = stepwise_exp(exponent(z) - base);
        if (sigmoid) y *= 1.0f / (1.0f + stepwise_exp(-magnitude(z)));
        return y / total;
    }
};

template <class T> DEVICE Shares route_shares(GLOBAL const T* z, GLOBAL const i32* experts, RouteParams p) {
    Shares s = {p.sigmoid, NEGATIVE_INFINITY, 1.0f};
    for (u32 k = 0; k < p.chosen; k++) s.base = maximum(s.exponent(widen(z[experts[k]])), s.base);
    float total = 0.0f;
    for (u32 k = 0; k < p.chosen; k++) total += s.of(widen(z[experts[k]]));
    s.total = total;
    return s;
}

// Rank is a score with its expert, in the order of choice: by key, which is the order of floats with NaN on top, then by
// ascending expert.
struct Rank { u32 key, expert; };

DEVICE u32 rank_key(float score) {
    if (is_nan(score)) return 0xffffffffu;
    u32 b = float_bits(score + 0.0f); // -0 becomes 0
    return b >> 31 ? ~b : b | 0x80000000u;
}
DEVICE bool rank_ahead(Rank a, Rank b) { return a.key > b.key || (a.key == b.key && a.expert < b.expert); }

template <class T>
DEVICE void route(u32 lane, GLOBAL i32* experts, GLOBAL f32* weights, GLOBAL const T* z, GLOBAL const f32* bias, RouteParams p) {
    Softmax s = {0.0f, 1.0f};
    if (!p.sigmoid && (p.some & ROUTE_BIAS || !p.normalize)) s = route_softmax(lane, z, p.experts);
    Rank last = {0, 0};
    for (u32 k = 0; k < p.chosen; k++) {
        Rank best = {0, 0xffffffffu}; // behind all
        for (u32 e = lane; e < p.experts; e += WARP) {
            float x = widen(z[e]);
            if (p.some & ROUTE_BIAS) x = (p.sigmoid ? sigmoid_of(x).s : s.of(x)) + bias[e];
            Rank r = {rank_key(x), e};
            if ((k == 0 || rank_ahead(last, r)) && rank_ahead(r, best)) best = r;
        }
        for (u32 d = WARP / 2; d > 0; d /= 2) {
            Rank r = {shuffle_xor(best.key, d), shuffle_xor(best.expert, d)};
            if (rank_ahead(r, best)) best = r;
        }
        last = best;
        if (lane == 0) experts[k] = (i32)best.expert;
    }
    if (lane != 0) return;
    if (p.normalize) {
        Shares c = route_shares(z, experts, p);
        for (u32 k = 0; k < p.chosen; k++) weights[k] = p.scale * c.of(widen(z[experts[k]]));
        return;
    }
    for (u32 k = 0; k < p.chosen; k++) {
        float x = widen(z[experts[k]]);
        weights[k] = p.scale * (p.sigmoid ? sigmoid_of(x).s : s.of(x));
    }
}

#define ROUTE(T)                                                                                                       \
    KERNEL(fused_route_##T, 256, OPERAND(i32, experts, 0), OPERAND(f32, weights, 1), OPERAND(const T, logits, 2),      \
           OPERAND(const f32, bias, 3), PARAMS(RouteParams, p)) {                                                      \
        Thread t = THREAD;                                                                                             \
        NORM_ROWS(row) {                                                                                               \
            route<T>(lane_of(t), experts + row * p.chosen, weights + row * p.chosen, logits + row * p.experts, bias, p); \
        }                                                                                                              \
    }
FOR_FLOATS(ROUTE)

// ---- backward: a lane owns every WARP'th logit. What it needs of others it reads before any lane writes, since dlogits may
// be logits.

template <class T>
DEVICE void route_backward(u32 lane, GLOBAL T* dz, GLOBAL const f32* dw, GLOBAL const T* z, GLOBAL const i32* experts,
                           GLOBAL const f32* aux, RouteParams p) {
    bool with_aux = p.some & ROUTE_AUX, with_weights = p.some & ROUTE_DWEIGHTS;
    Softmax s = {0.0f, 1.0f};
    if (!p.sigmoid && (with_aux || !p.normalize)) s = route_softmax(lane, z, p.experts);
    float mean_aux = 0.0f, mean = 0.0f;
    if (with_aux && !p.sigmoid) {
        for (u32 e = lane; e < p.experts; e += WARP) mean_aux += aux[e] * s.of(widen(z[e]));
        mean_aux = warp_sum(mean_aux);
    }
    Shares c = {0, 0.0f, 1.0f};
    if (with_weights && p.normalize) c = route_shares(z, experts, p);
    if (with_weights && (p.normalize || !p.sigmoid)) {
        for (u32 k = 0; k < p.chosen; k++) {
            float x = widen(z[experts[k]]);
            mean += p.scale * dw[k] * (p.normalize ? c.of(x) : s.of(x));
        }
    }
    sync_warp();
    for (u32 e = lane; e < p.experts; e += WARP) {
        float x = widen(z[e]), d = 0.0f;
        Sigmoid y = {0.0f, 0.0f};
        if (p.sigmoid) y = sigmoid_of(x);
        if (with_aux) d = p.sigmoid ? aux[e] * (y.s * y.rest) : (aux[e] - mean_aux) * s.of(x);
        if (with_weights && !p.normalize && !p.sigmoid) d -= mean * s.of(x);
        for (u32 k = 0; with_weights && k < p.chosen; k++) {
            if (experts[k] != (i32)e) continue;
            float g = p.scale * dw[k];
            if (p.normalize) {
                g = (g - mean) * c.of(x);
                if (p.sigmoid) g *= y.rest;
            } else {
                g *= p.sigmoid ? y.s * y.rest : s.of(x);
            }
            d += g;
        }
        dz[e] = narrow<T>(d);
    }
}

#define ROUTE_BACKWARD(T)                                                                                              \
    KERNEL(fused_route_backward_##T, 256, OPERAND(T, dlogits, 0), OPERAND(const f32, dweights, 1),                     \
           OPERAND(const T, logits, 2), OPERAND(const i32, experts, 3), OPERAND(const f32, aux, 4),                    \
           PARAMS(RouteParams, p)) {                                                                                   \
        Thread t = THREAD;                                                                                             \
        NORM_ROWS(row) {                                                                                               \
            u64 at = row * p.experts, choice = row * p.chosen;                                                         \
            route_backward<T>(lane_of(t), dlogits + at, dweights + choice, logits + at, experts + choice, aux, p);     \
        }                                                                                                              \
    }
FOR_FLOATS(ROUTE_BACKWARD)

// ---- the sums of scores: a warp adds the rows of a part, in order.

struct ScoresParams {
    u64 all, part_rows; // all: rows of the logits
    u64 rows;           // parts
    u32 experts, sigmoid;
};

template <class T> DEVICE void add_scores(u32 lane, GLOBAL f32* sums, GLOBAL const T* logits, u64 part, ScoresParams p) {
    for (u32 e = lane; e < p.experts; e += WARP) sums[e] = 0.0f;
    u64 end = least((part + 1) * p.part_rows, p.all);
    for (u64 i = part * p.part_rows; i < end; i++) {
        GLOBAL const T* z = logits + i * p.experts;
        Softmax s = {0.0f, 1.0f};
        if (!p.sigmoid) s = route_softmax(lane, z, p.experts);
        for (u32 e = lane; e < p.experts; e += WARP) sums[e] += p.sigmoid ? sigmoid_of(widen(z[e])).s : s.of(widen(z[e]));
    }
}

#define ADD_SCORES(T)                                                                                                  \
    KERNEL(fused_add_scores_##T, 256, OPERAND(f32, partial, 0), OPERAND(const T, logits, 1), PARAMS(ScoresParams, p)) { \
        Thread t = THREAD;                                                                                             \
        NORM_ROWS(part) { add_scores<T>(lane_of(t), partial + part * p.experts, logits, part, p); }                    \
    }
FOR_FLOATS(ADD_SCORES)

// ---- rows of y that belong to rows of x: pairs[i]/chosen

struct AddRowsParams {
    u64 rows;
    u32 cols, wide, chosen, weighted; // weighted: there are weights
    u32 dots, unused;                 // dots: dweights are wanted
};

template <class T> struct AddRowOp {
    GLOBAL T* y;
    GLOBAL const T* x;
    float weight;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> a = load_pack<n>(y + i), b = load_pack<n>(x + i);
        UNROLL for (int k = 0; k < n; k++) a.x[k] = narrow<T>(widen(a.x[k]) + weight * widen(b.x[k]));
        store_pack<n>(y + i, a);
    }
};

template <class T> struct DotOp {
    GLOBAL const T* a;
    GLOBAL const T* b;
    float sum;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> x = load_pack<n>(a + i), y = load_pack<n>(b + i);
        UNROLL for (int k = 0; k < n; k++) sum = fused_mul_add(widen(x.x[k]), widen(y.x[k]), sum);
    }
};

template <class T> struct ScaleOp {
    GLOBAL T* out;
    GLOBAL const T* x;
    float weight;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> v = load_pack<n>(x + i);
        UNROLL for (int k = 0; k < n; k++) v.x[k] = narrow<T>(weight * widen(v.x[k]));
        store_pack<n>(out + i, v);
    }
};

#define ADD_ROWS(T)                                                                                                    \
    KERNEL(fused_add_rows_##T, 256, OPERAND(T, y, 0), OPERAND(const T, x, 1), OPERAND(const f32, weights, 2),          \
           OPERAND(const i32, pairs, 3), PARAMS(AddRowsParams, p)) {                                                   \
        Thread t = THREAD;                                                                                             \
        NORM_ROWS(row) {                                                                                               \
            u32 pair = (u32)pairs[row];                                                                                \
            AddRowOp<T> op = {y + (u64)(pair / p.chosen) * p.cols, x + row * p.cols, p.weighted ? weights[pair] : 1.0f}; \
            row_each<T>(lane_of(t), p.cols, p.wide, op);                                                               \
        }                                                                                                              \
    }                                                                                                                  \
    KERNEL(fused_add_rows_backward_##T, 256, OPERAND(T, dx, 0), OPERAND(f32, dweights, 1), OPERAND(const T, dy, 2),    \
           OPERAND(const T, x, 3), OPERAND(const f32, weights, 4), OPERAND(const i32, pairs, 5),                       \
           PARAMS(AddRowsParams, p)) {                                                                                 \
        Thread t = THREAD;                                                                                             \
        NORM_ROWS(row) {                                                                                               \
            u32 pair = (u32)pairs[row];                                                                                \
            GLOBAL const T* from = dy + (u64)(pair / p.chosen) * p.cols;                                               \
            if (p.dots) {                                                                                              \
                DotOp<T> dot = {from, x + row * p.cols, 0.0f};                                                         \
                row_each<T>(lane_of(t), p.cols, p.wide, dot);                                                          \
                float sum = warp_sum(dot.sum);                                                                         \
                if (lane_of(t) == 0) dweights[pair] = sum;                                                             \
            }                                                                                                          \
            ScaleOp<T> op = {dx + row * p.cols, from, p.weighted ? weights[pair] : 1.0f};                              \
            row_each<T>(lane_of(t), p.cols, p.wide, op);                                                               \
        }                                                                                                              \
    }
FOR_FLOATS(ADD_ROWS)
