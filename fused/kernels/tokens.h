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

// ---- embedding backward: dtable[tokens[i]] += alpha·dy[i], in the order of i.
// A block takes a row of dy and does nothing if its token came before; else it
// adds all rows of the token, and so owns the row of the table.

struct ScatterParams {
    u64 rows;
    u32 cols;
    f32 alpha;
};

enum { SCATTER_THREADS = 128 };

template <class T>
DEVICE void scatter(Thread t, GLOBAL f32* dtable, GLOBAL const T* dy, GLOBAL const i32* tokens, ScatterParams p,
                    GROUP float* scratch, GROUP u32* same) {
    u64 first = t.block;
    i32 token = tokens[first];
    float before = 0.0f;
    for (u64 j = t.local; j < first && before == 0.0f; j += SCATTER_THREADS) before = tokens[j] == token ? 1.0f : 0.0f;
    if (block_max(t, before, scratch) != 0.0f) return;
    GLOBAL f32* row = dtable + (u64)token * p.cols;
    for (u64 base = first; base < p.rows; base += SCATTER_THREADS) {
        u64 j = base + t.local;
        bool match = j < p.rows && tokens[j] == token;
        if (block_max(t, match ? 1.0f : 0.0f, scratch) == 0.0f) continue;
        same[t.local] = match ? 1 : 0;
        sync_threads();
        for (u32 k = 0; k < SCATTER_THREADS; k++) {
            if (!same[k]) continue;
            GLOBAL const T* from = dy + (base + k) * p.cols;
            for (u32 c = t.local; c < p.cols; c += SCATTER_THREADS) row[c] += p.alpha * widen(from[c]);
        }
        sync_threads();
    }
}

#define SCATTER(T)                                                                                                  \
    KERNEL(fused_embedding_backward_##T, SCATTER_THREADS, OPERAND(f32, dtable, 0), OPERAND(const T, dy, 1),         \
           OPERAND(const i32, tokens, 2), PARAMS(ScatterParams, p)) {                                               \
        SHARED(float, scratch, SCATTER_THREADS / 32);                                                               \
        SHARED(u32, same, SCATTER_THREADS);                                                                         \
        scatter<T>(THREAD, dtable, dy, tokens, p, scratch, same);                                                   \
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
