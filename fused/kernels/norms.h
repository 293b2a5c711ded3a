// LayerNorm and RMSNorm. A warp takes a row; it reads it again from the caches
// for every pass over it.
#pragma once

struct NormParams {
    u64 rows;
    u32 cols, wide; // wide: all operands and rows start at multiples of 16 bytes
    f32 eps;
    u32 keep; // the statistics
};

// NormGradParams is for the gradient in x: dx = beta·dx + alpha·g.
struct NormGradParams {
    u64 rows;
    u32 cols, wide;
    f32 alpha, beta;
};

// The passes over a row, for lane `lane` of its warp. Center is the mean, 0 for
// RMSNorm.

// row_each calls f.at for the lane's elements of a row. These and their order are
// the same with and without wide, so that sums have the same bits wherever a row
// starts.
template <class T, class F> DEVICE void row_each(u32 lane, u32 cols, u32 wide, PRIVATE F& f) {
    const u32 per = 16 / sizeof(T);
    u32 packs = cols / per;
    if (wide) {
        UNROLL_2 for (u32 i = lane; i < packs; i += WARP) f.template at<per>(i * per);
    } else {
        UNROLL_1 for (u32 i = lane; i < packs; i += WARP)
            UNROLL_1 for (u32 k = 0; k < per; k++) f.template at<1>(i * per + k);
    }
    UNROLL_1 for (u32 i = packs * per + lane; i < cols; i += WARP) f.template at<1>(i);
}

template <class T> struct RowSum {
    GLOBAL const T* x;
    float sum;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> v = load_pack<n>(x + i);
        UNROLL for (int k = 0; k < n; k++) sum += widen(v.x[k]);
    }
};

template <class T> struct RowSquares {
    GLOBAL const T* x;
    float center, sum;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> v = load_pack<n>(x + i);
        UNROLL for (int k = 0; k < n; k++) {
            float d = widen(v.x[k]) - center;
            sum = fused_mul_add(d, d, sum);
        }
    }
};

template <class T> DEVICE float row_mean(u32 lane, GLOBAL const T* x, u32 cols, u32 wide) {
    RowSum<T> s = {x, 0.0f};
    row_each<T>(lane, cols, wide, s);
    return warp_sum(s.sum) / (float)cols;
}

// row_rstd returns 1/√(Σ(x - center)²/cols + eps).
template <class T> DEVICE float row_rstd(u32 lane, GLOBAL const T* x, float center, u32 cols, u32 wide, float eps) {
    RowSquares<T> s = {x, center, 0.0f};
    row_each<T>(lane, cols, wide, s);
    return 1.0f / square_root(warp_sum(s.sum) / (float)cols + eps);
}

template <class T> struct LayerNormRow {
    GLOBAL T* out;
    GLOBAL const T* x;
    GLOBAL const T* gamma;
    GLOBAL const T* beta;
    float mean, rstd;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> v = load_pack<n>(x + i), g = load_pack<n>(gamma + i), b = load_pack<n>(beta + i);
        UNROLL for (int k = 0; k < n; k++)
            v.x[k] = narrow<T>((widen(v.x[k]) - mean) * rstd * widen(g.x[k]) + widen(b.x[k]));
        store_pack<n>(out + i, v);
    }
};

#define NORM_ROWS(row) \
    for (u64 row = (u64)t.block * (t.threads / WARP) + warp_of(t); row < p.rows; row += (u64)t.blocks * (t.threads / WARP))

#define LAYERNORM(T)                                                                                                 \
    KERNEL(fused_layernorm_##T, 256, OPERAND(T, out, 0), OPERAND(f32, mean, 1), OPERAND(f32, rstd, 2),               \
           OPERAND(const T, x, 3), OPERAND(const T, gamma, 4), OPERAND(const T, beta, 5), PARAMS(NormParams, p)) {   \
        Thread t = THREAD;                                                                                           \
        NORM_ROWS(row) {                                                                                             \
            GLOBAL const T* from = x + row * p.cols;                                                                 \
            float m = row_mean<T>(lane_of(t), from, p.cols, p.wide);                                                 \
            float r = row_rstd<T>(lane_of(t), from, m, p.cols, p.wide, p.eps);                                       \
            LayerNormRow<T> op = {out + row * p.cols, from, gamma, beta, m, r};                                      \
            row_each<T>(lane_of(t), p.cols, p.wide, op);                                                             \
            if (p.keep && lane_of(t) == 0) mean[row] = m, rstd[row] = r;                                             \
        }                                                                                                            \
    }
FOR_FLOATS(LAYERNORM)

template <class T> struct RMSNormRow {
    GLOBAL T* out;
    GLOBAL const T* x;
    GLOBAL const T* gamma;
    float rstd;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> v = load_pack<n>(x + i), g = load_pack<n>(gamma + i);
        UNROLL for (int k = 0; k < n; k++) v.x[k] = narrow<T>(widen(v.x[k]) * rstd * widen(g.x[k]));
        store_pack<n>(out + i, v);
    }
};

#define RMSNORM(T)                                                                                                 \
    KERNEL(fused_rmsnorm_##T, 256, OPERAND(T, out, 0), OPERAND(f32, rstd, 1), OPERAND(const T, x, 2),              \
           OPERAND(const T, gamma, 3), PARAMS(NormParams, p)) {                                                    \
        Thread t = THREAD;                                                                                         \
        NORM_ROWS(row) {                                                                                           \
            GLOBAL const T* from = x + row * p.cols;                                                               \
            float r = row_rstd<T>(lane_of(t), from, 0.0f, p.cols, p.wide, p.eps);                                  \
            RMSNormRow<T> op = {out + row * p.cols, from, gamma, r};                                               \
            row_each<T>(lane_of(t), p.cols, p.wide, op);                                                           \
            if (p.keep && lane_of(t) == 0) rstd[row] = r;                                                          \
        }                                                                                                          \
    }
FOR_FLOATS(RMSNORM)

// ---- gradients in x: with g = dy·gamma and xhat = (x - mean)·rstd,
//
//	dx ← rstd·(g - avg(g) - xhat·avg(g·xhat))
//
// without the first average for RMSNorm.

template <class T> struct GradSums {
    GLOBAL const T* dy;
    GLOBAL const T* x;
    GLOBAL const T* gamma;
    float mean, rstd, sum, sum_x;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> d = load_pack<n>(dy + i), v = load_pack<n>(x + i), w = load_pack<n>(gamma + i);
        UNROLL for (int k = 0; k < n; k++) {
            float g = widen(d.x[k]) * widen(w.x[k]);
            sum += g;
            sum_x = fused_mul_add(g, (widen(v.x[k]) - mean) * rstd, sum_x);
        }
    }
};

template <class T> struct GradRow {
    GLOBAL T* dx;
    GLOBAL const T* dy;
    GLOBAL const T* x;
    GLOBAL const T* gamma;
    float mean, rstd, avg, avg_x, alpha, beta;

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> d = load_pack<n>(dy + i), v = load_pack<n>(x + i), w = load_pack<n>(gamma + i), acc = d;
        if (beta != 0.0f) acc = load_pack<n>(dx + i);
        UNROLL for (int k = 0; k < n; k++) {
            float xhat = (widen(v.x[k]) - mean) * rstd;
            float g = rstd * (widen(d.x[k]) * widen(w.x[k]) - avg - xhat * avg_x) * alpha;
            if (beta != 0.0f) g += beta * widen(acc.x[k]);
            d.x[k] = narrow<T>(g);
        }
        store_pack<n>(dx + i, d);
    }
};

template <class T>
DEVICE void norm_grad_row(u32 lane, GLOBAL T* dx, GLOBAL const T* dy, GLOBAL const T* x, GLOBAL const T* gamma, float mean,
                          float rstd, bool centered, NormGradParams p) {
    GradSums<T> s = {dy, x, gamma, mean, rstd, 0.0f, 0.0f};
    row_each<T>(lane, p.cols, p.wide, s);
    float n = (float)p.cols, avg = warp_sum(s.sum) / n, avg_x = warp_sum(s.sum_x) / n;
    GradRow<T> op = {dx, dy, x, gamma, mean, rstd, centered ? avg : 0.0f, avg_x, p.alpha, p.beta};
    row_each<T>(lane, p.cols, p.wide, op);
}

#define LAYERNORM_BACKWARD(T)                                                                                         \
    KERNEL(fused_layernorm_backward_##T, 256, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2),     \
           OPERAND(const f32, mean, 3), OPERAND(const f32, rstd, 4), OPERAND(const T, gamma, 5),                      \
           PARAMS(NormGradParams, p)) {                                                                               \
        Thread t = THREAD;                                                                                            \
        NORM_ROWS(row) {                                                                                              \
            u64 at = row * p.cols;                                                                                    \
            norm_grad_row<T>(lane_of(t), dx + at, dy + at, x + at, gamma, mean[row], rstd[row], true, p);             \
        }                                                                                                             \
    }
FOR_FLOATS(LAYERNORM_BACKWARD)

#define RMSNORM_BACKWARD(T)                                                                                           \
    KERNEL(fused_rmsnorm_backward_##T, 256, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2),       \
           OPERAND(const f32, rstd, 3), OPERAND(const T, gamma, 4), PARAMS(NormGradParams, p)) {                      \
        Thread t = THREAD;                                                                                            \
        NORM_ROWS(row) {                                                                                              \
            u64 at = row * p.cols;                                                                                    \
            norm_grad_row<T>(lane_of(t), dx + at, dy + at, x + at, gamma, 0.0f, rstd[row], false, p);                 \
        }                                                                                                             \
    }
FOR_FLOATS(RMSNORM_BACKWARD)
