// Sums over rows, in two steps: a partial sum for every part of the rows, and then
// their total. sums.go has the parts on devices. A block has a strip of columns and a
// part of the rows: a thread adds 16 bytes of every few rows, and then the threads of a
// column are added in their order. Shapes and types alone say what is added where.
#pragma once

enum {
    SUM_THREADS = 256,
    SUM_AHEAD = 4,              // rows that a thread loads before it adds the first
    SUM_STRIDE = SUM_THREADS + 4, // of columns in block memory, so that they fall into different banks
};

struct SumParams {
    u64 rows, part_rows;
    u32 cols, wide; // wide: all operands and rows start at multiples of 16 bytes
    u32 lanes;      // threads side by side in a row, a power of 2 up to WARP
    u32 frozen;     // no sums: GELU's backward pass with a frozen bias
};

// Sums are the sums of n columns, up to two of each.
template <int n> struct Sums {
    float g[n], b[n];
};

template <int n> DEVICE Sums<n> no_sums() {
    Sums<n> s;
    UNROLL for (int k = 0; k < n; k++) s.g[k] = s.b[k] = 0.0f;
    return s;
}

// add_rows adds n columns from column c on, of the rows lo, lo + step, ... below hi.
template <int n, int ahead, class F> DEVICE Sums<n> add_rows(PRIVATE const F& f, u64 lo, u64 hi, u32 step, u32 cols, u32 c) {
    Sums<n> s = no_sums<n>();
    typename F::template Column<n> column = f.template column<n>(c);
    u64 r = lo;
    UNROLL_1 for (; r + (ahead - 1) * step < hi; r += ahead * step) {
        typename F::template Row<n> rows[ahead];
        UNROLL for (int i = 0; i < ahead; i++) rows[i] = f.template load<n>(r + i * step, (r + i * step) * cols + c);
        UNROLL for (int i = 0; i < ahead; i++) f.template add<n>(s, rows[i], column, (r + i * step) * cols + c);
    }
    UNROLL_1 for (; r < hi; r += step) {
        typename F::template Row<n> row = f.template load<n>(r, r * cols + c);
        f.template add<n>(s, row, column, r * cols + c);
    }
    return s;
}

// column_sums leaves the sums of a block's strip at out[c], and the second of each column at out[cols + c].
template <int per, int sums, class F>
DEVICE void column_sums(Thread t, PRIVATE const F& f, GLOBAL f32* out, SumParams p, GROUP float* room) {
    u32 first = t.block * p.lanes * per, c = first + t.local % p.lanes * per, step = SUM_THREADS / p.lanes;
    u64 lo = t.block_y * p.part_rows, hi = least(lo + p.part_rows, p.rows);
    lo += t.local / p.lanes;
    if (p.wide && c + per <= p.cols) {
        Sums<per> s = add_rows<per, SUM_AHEAD>(f, lo, hi, step, p.cols, c);
        UNROLL for (int k = 0; k < per; k++) {
            room[k * SUM_STRIDE + t.local] = s.g[k];
            if (sums == 2) room[(per + k) * SUM_STRIDE + t.local] = s.b[k];
        }
    } else {
        UNROLL_1 for (u32 k = 0; k < per && c + k < p.cols; k++) {
            Sums<1> s = add_rows<1, 1>(f, lo, hi, step, p.cols, c + k);
            room[k * SUM_STRIDE + t.local] = s.g[0];
            if (sums == 2) room[(per + k) * SUM_STRIDE + t.local] = s.b[0];
        }
    }
    if (p.frozen) return;
    sync_threads();
    UNROLL_1 for (u32 i = t.local; i < p.lanes * per && first + i < p.cols; i += SUM_THREADS) {
        UNROLL for (u32 k = 0; k < sums; k++) {
            GROUP const float* from = room + (k * per + i % per) * SUM_STRIDE + i / per;
            float sum = 0.0f;
            UNROLL_1 for (u32 j = 0; j < SUM_THREADS; j += p.lanes) sum += from[j];
            out[k * p.cols + first + i] = sum;
        }
    }
}

// ---- LayerNorm's dgamma = Σ dy·xhat and dbeta = Σ dy; RMSNorm's without a mean
// and dbeta. Part p leaves them at ws[p][2][cols] or ws[p][cols]. They are for rows that
// norm_grads.h does not take.

template <class T> struct NormSumsOp {
    GLOBAL const T* dy;
    GLOBAL const T* x;
    GLOBAL const f32* mean; // null for RMSNorm
    GLOBAL const f32* rstd;

    template <int n> struct Column {};
    template <int n> struct Row {
        Pack<T, n> dy, x;
        float mean, rstd;
    };
    template <int n> DEVICE_MEMBER Column<n> column(u32) const { return Column<n>{}; }
    template <int n> DEVICE_MEMBER Row<n> load(u64 row, u64 at) const {
        return Row<n>{load_pack<n>(dy + at), load_pack<n>(x + at), mean ? mean[row] : 0.0f, rstd[row]};
    }
    template <int n> DEVICE_MEMBER void add(PRIVATE Sums<n>& s, PRIVATE const Row<n>& r, PRIVATE const Column<n>&, u64) const {
        UNROLL for (int k = 0; k < n; k++) {
            float y = widen(r.dy.x[k]);
            s.g[k] = fused_mul_add(y, (widen(r.x.x[k]) - r.mean) * r.rstd, s.g[k]);
            s.b[k] += y;
        }
    }
};

#define SUM_PER(T) (16 / sizeof(T))
#define SUM_ROOM(T, sums) SHARED(float, room, (sums) * SUM_PER(T) * SUM_STRIDE)

#define LAYERNORM_SUMS(T)                                                                                               \
    KERNEL(fused_layernorm_sums_##T, SUM_THREADS, OPERAND(f32, ws, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2), \
           OPERAND(const f32, mean, 3), OPERAND(const f32, rstd, 4), PARAMS(SumParams, p)) {                            \
        SUM_ROOM(T, 2);                                                                                                 \
        Thread t = THREAD;                                                                                              \
        NormSumsOp<T> op = {dy, x, mean, rstd};                                                                         \
        column_sums<SUM_PER(T), 2>(t, op, ws + (u64)t.block_y * 2 * p.cols, p, room);                                   \
    }
FOR_FLOATS(LAYERNORM_SUMS)

#define RMSNORM_SUMS(T)                                                                                                 \
    KERNEL(fused_rmsnorm_sums_##T, SUM_THREADS, OPERAND(f32, ws, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2),   \
           OPERAND(const f32, rstd, 3), PARAMS(SumParams, p)) {                                                         \
        SUM_ROOM(T, 1);                                                                                                 \
        Thread t = THREAD;                                                                                              \
        NormSumsOp<T> op = {dy, x, 0, rstd};                                                                            \
        column_sums<SUM_PER(T), 1>(t, op, ws + (u64)t.block_y * p.cols, p, room);                                       \
    }
FOR_FLOATS(RMSNORM_SUMS)

// ---- BiasGELU's backward pass: dx = dy·gelu'(x + bias), and its partial sums at
// ws[p][cols] unless the bias is frozen. dx may be dy.

template <class T, class F> struct GELUGradOp {
    GLOBAL T* dx;
    GLOBAL const T* dy;
    GLOBAL const T* x;
    GLOBAL const T* bias;

    template <int n> struct Column {
        Pack<T, n> bias;
    };
    template <int n> struct Row {
        Pack<T, n> dy, x;
    };
    template <int n> DEVICE_MEMBER Column<n> column(u32 c) const { return Column<n>{load_pack<n>(bias + c)}; }
    template <int n> DEVICE_MEMBER Row<n> load(u64, u64 at) const {
        return Row<n>{load_pack<n>(dy + at), load_pack<n>(x + at)};
    }
    template <int n>
    DEVICE_MEMBER void add(PRIVATE Sums<n>& s, PRIVATE const Row<n>& r, PRIVATE const Column<n>& column, u64 at) const {
        Pack<T, n> d;
        UNROLL for (int k = 0; k < n; k++) {
            float g = widen(r.dy.x[k]) * F::slope(widen(r.x.x[k]) + widen(column.bias.x[k]));
            s.g[k] += g;
            d.x[k] = narrow<T>(g);
        }
        store_pack<n>(dx + at, d);
    }
};

#define BIAS_GELU_BACKWARD_KERNEL(NAME, F, T)                                                                           \
    KERNEL(fused_bias_##NAME##_backward_##T, SUM_THREADS, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2), \
           OPERAND(const T, bias, 3), OPERAND(f32, ws, 4), PARAMS(SumParams, p)) {                                      \
        SUM_ROOM(T, 1);                                                                                                 \
        Thread t = THREAD;                                                                                              \
        GELUGradOp<T, F> op = {dx, dy, x, bias};                                                                        \
        column_sums<SUM_PER(T), 1>(t, op, ws + (u64)t.block_y * p.cols, p, room);                                       \
    }
#define BIAS_GELU_BACKWARD(T) BIAS_GELU_BACKWARD_KERNEL(gelu, GELUTanh, T)
#define BIAS_GELU_ERF_BACKWARD(T) BIAS_GELU_BACKWARD_KERNEL(gelu_erf, GELUErf, T)
FOR_FLOATS(BIAS_GELU_BACKWARD)
FOR_FLOATS(BIAS_GELU_ERF_BACKWARD)

// ---- BiasAdd's backward pass: partial sums of dy at ws[p][cols].

template <class T> struct BiasSumsOp {
    GLOBAL const T* dy;

    template <int n> struct Column {};
    template <int n> struct Row {
        Pack<T, n> dy;
    };
    template <int n> DEVICE_MEMBER Column<n> column(u32) const { return Column<n>{}; }
    template <int n> DEVICE_MEMBER Row<n> load(u64, u64 at) const { return Row<n>{load_pack<n>(dy + at)}; }
    template <int n> DEVICE_MEMBER void add(PRIVATE Sums<n>& s, PRIVATE const Row<n>& r, PRIVATE const Column<n>&, u64) const {
        UNROLL for (int k = 0; k < n; k++) s.g[k] += widen(r.dy.x[k]);
    }
};

#define BIAS_SUMS(T)                                                                                                    \
    KERNEL(fused_bias_sums_##T, SUM_THREADS, OPERAND(f32, ws, 0), OPERAND(const T, dy, 1), PARAMS(SumParams, p)) {      \
        SUM_ROOM(T, 1);                                                                                                 \
        Thread t = THREAD;                                                                                              \
        BiasSumsOp<T> op = {dy};                                                                                        \
        column_sums<SUM_PER(T), 1>(t, op, ws + (u64)t.block_y * p.cols, p, room);                                       \
    }
FOR_FLOATS(BIAS_SUMS)

// ---- the total of partial sums: acc = beta·acc + alpha·Σ partial[p·stride + column], and in blocks of the second row
// second by the partial sums behind cols others. A warp of a block adds every eighth part of WARP columns, and then
// the warps are added.

struct PartsParams {
    u32 cols, parts, stride;
    f32 alpha, beta;
};

enum { PARTS_THREADS = 256, PARTS_WARPS = PARTS_THREADS / WARP, PARTS_AHEAD = 4 };

KERNEL(fused_add_parts, PARTS_THREADS, OPERAND(f32, acc, 0), OPERAND(f32, second, 1), OPERAND(const f32, partial, 2),
       PARAMS(PartsParams, p)) {
    SHARED(float, room, PARTS_THREADS);
    Thread t = THREAD;
    u32 c = t.block * WARP + lane_of(t), i = warp_of(t);
    float sum = 0.0f;
    if (c < p.cols) {
        GLOBAL const f32* from = partial + (u64)t.block_y * p.cols + c;
        UNROLL_1 for (; i + (PARTS_AHEAD - 1) * PARTS_WARPS < p.parts; i += PARTS_AHEAD * PARTS_WARPS) {
            float x[PARTS_AHEAD];
            UNROLL for (u32 k = 0; k < PARTS_AHEAD; k++) x[k] = from[(u64)(i + k * PARTS_WARPS) * p.stride];
            UNROLL for (u32 k = 0; k < PARTS_AHEAD; k++) sum += x[k];
        }
        UNROLL_1 for (; i < p.parts; i += PARTS_WARPS) sum += from[(u64)i * p.stride];
    }
    room[t.local] = sum;
    sync_threads();
    if (warp_of(t) > 0 || c >= p.cols) return;
    UNROLL for (u32 w = 1; w < PARTS_WARPS; w++) sum += room[w * WARP + t.local];
    sum *= p.alpha;
    GLOBAL f32* to = t.block_y == 0 ? acc + c : second + c;
    *to = p.beta != 0.0f ? p.beta * *to + sum : sum;
}
