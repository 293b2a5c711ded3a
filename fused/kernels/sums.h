// Sums over rows, in two steps as sums.go has them: a partial sum for every part
// of the rows, and then their total. A thread owns SUM_COLS columns of a part, so
// a launch has blocks for columns in x and for parts in y.
#pragma once

enum { SUM_THREADS = 64, SUM_COLS = 4 };

struct SumParams {
    u64 rows, part_rows;
    u32 cols, wide; // wide: SUM_COLS columns move together
};

// columns calls f.at<SUM_COLS>(column) or f.at<1>(column) for the columns of a
// thread.
template <class F> DEVICE void columns(Thread t, u32 cols, u32 wide, PRIVATE const F& f) {
    u32 first = (t.block * SUM_THREADS + t.local) * SUM_COLS;
    if (wide && first + SUM_COLS <= cols) {
        f.template at<SUM_COLS>(first);
        return;
    }
    UNROLL_1 for (u32 c = first; c < cols && c < first + SUM_COLS; c++) f.template at<1>(c);
}

// ---- LayerNorm's dgamma = Σ dy·xhat and dbeta = Σ dy; RMSNorm's without a mean
// and dbeta. Part p leaves them at ws[p][cols] or ws[p][2][cols].

template <class T> struct NormSumsOp {
    GLOBAL f32* dgamma;
    GLOBAL f32* dbeta; // null for RMSNorm
    GLOBAL const T* dy;
    GLOBAL const T* x;
    GLOBAL const f32* mean; // null for RMSNorm
    GLOBAL const f32* rstd;
    u64 lo, hi;
    u32 cols;

    template <int n> DEVICE_MEMBER void at(u32 c) const {
        float g[n], b[n];
        UNROLL for (int k = 0; k < n; k++) g[k] = b[k] = 0.0f;
        UNROLL_2 for (u64 r = lo; r < hi; r++) {
            Pack<T, n> d = load_pack<n>(dy + r * cols + c), v = load_pack<n>(x + r * cols + c);
            float m = mean ? mean[r] : 0.0f, s = rstd[r];
            UNROLL for (int k = 0; k < n; k++) {
                float y = widen(d.x[k]);
                g[k] = fused_mul_add(y, (widen(v.x[k]) - m) * s, g[k]);
                b[k] += y;
            }
        }
        UNROLL for (int k = 0; k < n; k++) {
            dgamma[c + k] = g[k];
            if (dbeta) dbeta[c + k] = b[k];
        }
    }
};

#define LAYERNORM_SUMS(T)                                                                                               \
    KERNEL(fused_layernorm_sums_##T, SUM_THREADS, OPERAND(f32, ws, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2), \
           OPERAND(const f32, mean, 3), OPERAND(const f32, rstd, 4), PARAMS(SumParams, p)) {                            \
        Thread t = THREAD;                                                                                              \
        GLOBAL f32* part = ws + (u64)t.block_y * 2 * p.cols;                                                            \
        u64 lo = t.block_y * p.part_rows;                                                                               \
        NormSumsOp<T> op = {part, part + p.cols, dy, x, mean, rstd, lo, least(lo + p.part_rows, p.rows), p.cols};       \
        columns(t, p.cols, p.wide, op);                                                                                 \
    }
FOR_FLOATS(LAYERNORM_SUMS)

#define RMSNORM_SUMS(T)                                                                                                 \
    KERNEL(fused_rmsnorm_sums_##T, SUM_THREADS, OPERAND(f32, ws, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2),   \
           OPERAND(const f32, rstd, 3), PARAMS(SumParams, p)) {                                                         \
        Thread t = THREAD;                                                                                              \
        u64 lo = t.block_y * p.part_rows;                                                                               \
        NormSumsOp<T> op = {ws + (u64)t.block_y * p.cols, 0, dy, x, 0, rstd, lo, least(lo + p.part_rows, p.rows), p.cols}; \
        columns(t, p.cols, p.wide, op);                                                                                 \
    }
FOR_FLOATS(RMSNORM_SUMS)

// ---- BiasGELU's backward pass: dx = dy·gelu'(x + bias), and its partial sums at
// ws[p][cols] unless the bias is frozen.

struct GELUGradParams {
    u64 rows, part_rows;
    u32 cols, wide;
    u32 frozen, unused;
};

template <class T, class F> struct GELUGradOp {
    GLOBAL T* dx;
    GLOBAL const T* dy;
    GLOBAL const T* x;
    GLOBAL const T* bias;
    GLOBAL f32* sums; // null: frozen
    u64 lo, hi;
    u32 cols;

    template <int n> DEVICE_MEMBER void at(u32 c) const {
        Pack<T, n> b = load_pack<n>(bias + c);
        float sum[n];
        UNROLL for (int k = 0; k < n; k++) sum[k] = 0.0f;
        UNROLL_2 for (u64 r = lo; r < hi; r++) {
            Pack<T, n> d = load_pack<n>(dy + r * cols + c), v = load_pack<n>(x + r * cols + c);
            UNROLL for (int k = 0; k < n; k++) {
                float g = widen(d.x[k]) * F::slope(widen(v.x[k]) + widen(b.x[k]));
                sum[k] += g;
                d.x[k] = narrow<T>(g);
            }
            store_pack<n>(dx + r * cols + c, d);
        }
        if (!sums) return;
        UNROLL for (int k = 0; k < n; k++) sums[c + k] = sum[k];
    }
};

#define BIAS_GELU_BACKWARD_KERNEL(NAME, F, T)                                                                           \
    KERNEL(fused_bias_##NAME##_backward_##T, SUM_THREADS, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2), \
           OPERAND(const T, bias, 3), OPERAND(f32, ws, 4), PARAMS(GELUGradParams, p)) {                                 \
        Thread t = THREAD;                                                                                              \
        u64 lo = t.block_y * p.part_rows;                                                                               \
        GELUGradOp<T, F> op = {dx, dy, x, bias, p.frozen ? 0 : ws + (u64)t.block_y * p.cols, lo,                           \
                            least(lo + p.part_rows, p.rows), p.cols};                                                   \
        columns(t, p.cols, p.wide, op);                                                                                 \
    }
#define BIAS_GELU_BACKWARD(T) BIAS_GELU_BACKWARD_KERNEL(gelu, GELUTanh, T)
#define BIAS_GELU_ERF_BACKWARD(T) BIAS_GELU_BACKWARD_KERNEL(gelu_erf, GELUErf, T)
FOR_FLOATS(BIAS_GELU_BACKWARD)
FOR_FLOATS(BIAS_GELU_ERF_BACKWARD)

// ---- BiasAdd's backward pass: partial sums of dy at ws[p][cols].

template <class T> struct BiasSumsOp {
    GLOBAL f32* sums;
    GLOBAL const T* dy;
    u64 lo, hi;
    u32 cols;

    template <int n> DEVICE_MEMBER void at(u32 c) const {
        float sum[n];
        UNROLL for (int k = 0; k < n; k++) sum[k] = 0.0f;
        UNROLL_2 for (u64 r = lo; r < hi; r++) {
            Pack<T, n> d = load_pack<n>(dy + r * cols + c);
            UNROLL for (int k = 0; k < n; k++) sum[k] += widen(d.x[k]);
        }
        UNROLL for (int k = 0; k < n; k++) sums[c + k] = sum[k];
    }
};

#define BIAS_SUMS(T)                                                                                                    \
    KERNEL(fused_bias_sums_##T, SUM_THREADS, OPERAND(f32, ws, 0), OPERAND(const T, dy, 1), PARAMS(SumParams, p)) {      \
        Thread t = THREAD;                                                                                              \
        u64 lo = t.block_y * p.part_rows;                                                                               \
        BiasSumsOp<T> op = {ws + (u64)t.block_y * p.cols, dy, lo, least(lo + p.part_rows, p.rows), p.cols};             \
        columns(t, p.cols, p.wide, op);                                                                                 \
    }
FOR_FLOATS(BIAS_SUMS)

// ---- the total of partial sums: acc = beta·acc + alpha·Σ partial[p·stride + column]

struct PartsParams {
    u32 cols, parts, stride;
    f32 alpha, beta;
};

KERNEL(fused_add_parts, 256, OPERAND(f32, acc, 0), OPERAND(const f32, partial, 1), PARAMS(PartsParams, p)) {
    Thread t = THREAD;
    u32 c = t.block * t.threads + t.local;
    if (c >= p.cols) return;
    float sum = 0.0f;
    for (u32 i = 0; i < p.parts; i++) sum += partial[(u64)i * p.stride + c];
    sum *= p.alpha;
    acc[c] = p.beta != 0.0f ? p.beta * acc[c] + sum : sum;
}
