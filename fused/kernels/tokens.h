// Layers that look rows up: embedding and rotary.
#pragma once

struct EmbeddingParams {
    u64 rows;
    u32 cols, wide, add, unused; // add: a row of pos
};

template <class T> struct EmbeddingRow {
    GLOBAL T* out;
    GLOBAL const T* row;
    GLOBAL const T* pos; // null for none

    template <int n> DEVICE_MEMBER void at(u32 i) {
        Pack<T, n> x = load_pack<n>(row + i);
        if (pos) {
            Pack<T, n> y = load_pack<n>(pos + i);
            UNROLL for (int k = 0; k < n; k++) x.x[k] = narrow<T>(widen(x.x[k]) + widen(y.x[k]));
        }
        store_pack<n>(out + i, x);
    }
};

#define EMBEDDING(T)                                                                                                   \
    KERNEL(fused_embedding_##T, 256, OPERAND(T, out, 0), OPERAND(const T, table, 1), OPERAND(const i32, tokens, 2),    \
           OPERAND(const T, pos, 3), OPERAND(const i32, positions, 4), PARAMS(EmbeddingParams, p)) {                   \
        Thread t = THREAD;                                                                                             \
        NORM_ROWS(row) {                                                                                               \
            GLOBAL const T* shift = 0;                                                                                 \
            if (p.add) shift = pos + (u64)positions[row] * p.cols;                                                     \
            EmbeddingRow<T> op = {out + row * p.cols, table + (u64)tokens[row] * p.cols, shift};                       \
            row_each<T>(lane_of(t), p.cols, p.wide, op);                                                               \
        }                                                                                                              \
    }
FOR_FLOATS(EMBEDDING)

// ---- embedding backward: dtable[tokens[i]] += alpha·dy[i], in the order of i. The tokens are sorted first: the place of
// one is the number of those that are smaller, or equal and earlier. Warps count, so that no order depends on timing.

enum { ORDER_THREADS = 128, ORDER_EACH = 4, ORDER_AHEAD = 4 };

struct OrderParams {
    u64 rows;
};

// order[0][place] is the index of a token, order[1][place] the token. A warp places ORDER_EACH tokens.
KERNEL(fused_token_order, ORDER_THREADS, OPERAND(i32, order, 0), OPERAND(const i32, tokens, 1), PARAMS(OrderParams, p)) {
    Thread t = THREAD;
    u64 first = ((u64)t.block * (ORDER_THREADS / WARP) + warp_of(t)) * ORDER_EACH;
    if (first >= p.rows) return;
    i32 mine[ORDER_EACH];
    u32 place[ORDER_EACH];
    UNROLL for (u32 k = 0; k < ORDER_EACH; k++) mine[k] = tokens[least(first + k, p.rows - 1)], place[k] = 0;
    UNROLL_1 for (u64 base = 0; base < p.rows; base += ORDER_AHEAD * WARP) {
        i32 x[ORDER_AHEAD];
        UNROLL for (u32 a = 0; a < ORDER_AHEAD; a++) x[a] = tokens[least(base + a * WARP + lane_of(t), p.rows - 1)];
        UNROLL for (u32 a = 0; a < ORDER_AHEAD; a++) {
            u64 j = base + a * WARP + lane_of(t);
            UNROLL for (u32 k = 0; k < ORDER_EACH; k++)
                place[k] += j < p.rows && (x[a] < mine[k] || (x[a] == mine[k] && j < first + k)) ? 1 : 0;
        }
    }
    UNROLL for (u32 k = 0; k < ORDER_EACH; k++) {
        u32 at = place[k];
        for (u32 d = WARP / 2; d > 0; d /= 2) at += shuffle_xor(at, d);
        if (lane_of(t) == 0 && first + k < p.rows) order[at] = (i32)(first + k), order[p.rows + at] = mine[k];
    }
}

struct ScatterParams {
    u64 rows;
    u32 cols, wide; // wide: all operands and rows start at multiples of 16 bytes
    f32 alpha;
    u32 unused;
};

enum { SCATTER_THREADS = 128, SCATTER_COLS = 4, SCATTER_AHEAD = 4 };

// scatter adds n columns of the rows order[first], ..., order[end - 1] of dy to a row of the table.
template <int n, class T>
DEVICE void scatter(GLOBAL f32* row, GLOBAL const T* dy, GLOBAL const i32* order, u64 first, u64 end, u32 cols, f32 alpha) {
    Pack<f32, n> sum = load_pack<n>(row);
    UNROLL_1 for (; first + SCATTER_AHEAD <= end; first += SCATTER_AHEAD) {
        Pack<T, n> x[SCATTER_AHEAD];
        UNROLL for (u32 i = 0; i < SCATTER_AHEAD; i++) x[i] = load_pack<n>(dy + (u64)order[first + i] * cols);
        UNROLL for (u32 i = 0; i < SCATTER_AHEAD; i++)
            UNROLL for (int k = 0; k < n; k++) sum.x[k] += alpha * widen(x[i].x[k]);
    }
    UNROLL_1 for (; first < end; first++) {
        Pack<T, n> x = load_pack<n>(dy + (u64)order[first] * cols);
        UNROLL for (int k = 0; k < n; k++) sum.x[k] += alpha * widen(x.x[k]);
    }
    store_pack<n>(row, sum);
}

// The warp of a place does nothing if its token came before; else it owns WARP·SCATTER_COLS columns of the token's row.
#define SCATTER(T)                                                                                                  \
    KERNEL(fused_embedding_backward_##T, SCATTER_THREADS, OPERAND(f32, dtable, 0), OPERAND(const T, dy, 1),         \
           OPERAND(const i32, order, 2), PARAMS(ScatterParams, p)) {                                                \
        Thread t = THREAD;                                                                                          \
        u64 first = (u64)t.block * (SCATTER_THREADS / WARP) + warp_of(t), end = first;                              \
        GLOBAL const i32* sorted = order + p.rows;                                                                  \
        if (first >= p.rows || (first > 0 && sorted[first - 1] == sorted[first])) return;                           \
        i32 token = sorted[first];                                                                                  \
        u32 same = WARP;                                                                                            \
        while (same == WARP) {                                                                                      \
            u64 i = end + lane_of(t);                                                                               \
            same = (u32)warp_sum(i < p.rows && sorted[i] == token ? 1.0f : 0.0f);                                   \
            end += same;                                                                                            \
        }                                                                                                           \
        u32 c = (t.block_y * WARP + lane_of(t)) * SCATTER_COLS;                                                     \
        GLOBAL f32* row = dtable + (u64)token * p.cols;                                                             \
        if (p.wide && c + SCATTER_COLS <= p.cols) {                                                                 \
            scatter<SCATTER_COLS>(row + c, dy + c, order, first, end, p.cols, p.alpha);                             \
            return;                                                                                                 \
        }                                                                                                           \
        UNROLL_1 for (u32 k = 0; k < SCATTER_COLS && c + k < p.cols; k++)                                           \
            scatter<1>(row + c + k, dy + c + k, order, first, end, p.cols, p.alpha);                                \
    }
FOR_FLOATS(SCATTER)

// ---- rotary: a thread turns one pair

struct RotaryParams {
    u64 rows, stride;
    u32 heads, dim, turned, interleaved;
    f32 turn; // 1, or -1 to turn back
    u32 unused;
};

template <class T>
DEVICE void rotary(Thread t, GLOBAL T* x, GLOBAL const f32* angles, GLOBAL const i32* positions, RotaryParams p) {
    u32 pairs = p.turned / 2;
    u64 n = p.rows * p.heads * pairs;
    for (u64 i = (u64)t.block * t.threads + t.local; i < n; i += (u64)t.blocks * t.threads) {
        u32 k = (u32)(i % pairs);
        u64 row = i / pairs / p.heads, head = i / pairs % p.heads;
        GLOBAL T* a = x + row * p.stride + head * p.dim + (p.interleaved ? 2 * k : k);
        GLOBAL T* b = a + (p.interleaved ? 1 : pairs);
        GLOBAL const f32* angle = angles + (u64)positions[row] * p.turned + k;
        float c = angle[0], s = p.turn * angle[pairs], u = widen(*a), v = widen(*b);
        *a = narrow<T>(u * c - v * s);
        *b = narrow<T>(v * c + u * s);
    }
}

#define ROTARY(T)                                                                                                   \
    KERNEL(fused_rotary_##T, 256, OPERAND(T, x, 0), OPERAND(const f32, angles, 1), OPERAND(const i32, positions, 2), \
           PARAMS(RotaryParams, p)) {                                                                               \
        rotary<T>(THREAD, x, angles, positions, p);                                                                 \
    }
FOR_FLOATS(ROTARY)
