// Norms of rows, and what DoRA does beside its products.
#pragma once

// ---- norms: norms[r] = ‖x[r]‖, and with keep scale[r] = magnitude[r]/norms[r], 0 for
// a row of zeros. A block takes a row.

struct NormsParams {
    u64 rows, cols;
    u32 keep, unused;
};

template <class T>
DEVICE void norms_of(Thread t, GLOBAL f32* norms, GLOBAL f32* scale, GLOBAL const f32* magnitude, GLOBAL const T* x, u64 rows, u64 cols,
                     u32 keep, GROUP float* scratch) {
    for (u64 r = t.block; r < rows; r += t.blocks) {
        float sum = 0;
        for (u64 i = t.local; i < cols; i += t.threads) {
            float v = widen(x[r * cols + i]);
            sum = fused_mul_add(v, v, sum);
        }
        float norm = square_root(block_sum(t, sum, scratch));
        if (t.local != 0) continue;
        norms[r] = norm;
        if (keep) scale[r] = norm == 0 ? 0.0f : magnitude[r] / norm;
    }
}

#define NORMS(T)                                                                                                        \
    KERNEL(qlora_norms_##T, 256, OPERAND(f32, norms, 0), OPERAND(f32, scale, 1), OPERAND(const f32, magnitude, 2),     \
           OPERAND(const T, x, 3), PARAMS(NormsParams, p)) {                                                            \
        SHARED(f32, scratch, 8);                                                                                        \
        norms_of<T>(THREAD, norms, scale, magnitude, x, p.rows, p.cols, p.keep, scratch);                               \
    }
FOR_FLOATS(NORMS)

// ---- blend: dst = factor·src + beta·dst, which have one type. A block takes a row.

enum { FACTOR_NONE, FACTOR_COLUMN, FACTOR_ROW };

struct BlendParams {
    u64 rows, cols;
    f32 shift, beta;
    u32 factor, unused;
};

template <class T>
DEVICE void blend(Thread t, GLOBAL T* dst, GLOBAL const T* src, GLOBAL const f32* scale, u64 rows, u64 cols, float shift, float beta,
                  u32 factor) {
    for (u64 r = t.block; r < rows; r += t.blocks)
        for (u64 c = t.local; c < cols; c += t.threads) {
            u64 i = r * cols + c;
            float f = factor == FACTOR_NONE ? shift : shift + scale[factor == FACTOR_ROW ? r : c];
            float v = f * widen(src[i]);
            if (beta != 0) v += beta * widen(dst[i]);
            dst[i] = narrow<T>(v);
        }
}

#define BLEND(T)                                                                                                   \
    KERNEL(qlora_blend_##T, 256, OPERAND(T, dst, 0), OPERAND(const T, src, 1), OPERAND(const f32, scale, 2),      \
           PARAMS(BlendParams, p)) {                                                                               \
        blend<T>(THREAD, dst, src, scale, p.rows, p.cols, p.shift, p.beta, p.factor);                              \
    }
FOR_FLOATS(BLEND)

// ---- dots: acc[c] = beta·acc[c] + alpha·Σ dy[r,c]·h[r,c]/norms[c]. A thread takes a
// column.

struct DotsParams {
    u64 rows, cols;
    f32 alpha, beta;
};

template <class T>
DEVICE void dots(Thread t, GLOBAL f32* acc, GLOBAL const f32* norms, GLOBAL const T* dy, GLOBAL const T* h, u64 rows, u64 cols, float alpha,
                 float beta) {
    for (u64 c = (u64)t.block * t.threads + t.local; c < cols; c += (u64)t.blocks * t.threads) {
        float sum = 0;
        for (u64 i = c; i < rows * cols; i += cols) sum = fused_mul_add(widen(dy[i]), widen(h[i]), sum);
        sum = norms[c] == 0 ? 0.0f : alpha * (sum / norms[c]);
        if (beta != 0) sum += beta * acc[c];
        acc[c] = sum;
    }
}

#define DOTS(T)                                                                                                     \
    KERNEL(qlora_dots_##T, 256, OPERAND(f32, acc, 0), OPERAND(const f32, norms, 1), OPERAND(const T, dy, 2),       \
           OPERAND(const T, h, 3), PARAMS(DotsParams, p)) {                                                         \
        dots<T>(THREAD, acc, norms, dy, h, p.rows, p.cols, p.alpha, p.beta);                                        \
    }
FOR_FLOATS(DOTS)
