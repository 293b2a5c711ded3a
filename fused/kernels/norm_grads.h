// The gradients of LayerNorm and RMSNorm in one read of dy and x: dx, and the partial sums of dgamma and dbeta
// for a part of the rows. A block has a part. A team of its warps takes a row and keeps it in registers, with the
// sums of its columns over all rows that the team takes; the teams are added at the end. norms.h has the equations.
#pragma once

enum {
    GRADS_THREADS = 512,
    GRADS_WARPS = GRADS_THREADS / WARP,
    GRADS_LANE = 16,                  // elements of a row that a lane has
    GRADS_STRIDE = GRADS_THREADS + 4, // of columns in block memory, so that they fall into different banks
};

struct NormGradsParams {
    u64 rows, part_rows;
    u32 cols, wide; // wide: all operands and rows start at multiples of 16 bytes
    u32 team;       // warps, a power of 2 with team·WARP·GRADS_LANE ≥ cols
    f32 alpha, beta;
    u32 unused;
};

// Words are the 16 / sizeof(T) elements in 16 bytes. Elements of 16 bits stay in words, two of which a register holds.
template <class T> struct Words {
    static DEVICE_MEMBER float get(PRIVATE const Wide16& x, u32 k) { return widen(T{(u16)(x.word[k / 2] >> (16 * (k % 2)))}); }
    static DEVICE_MEMBER void put(PRIVATE Wide16& x, u32 k, T y) {
        x.word[k / 2] = k % 2 == 0 ? (u32)y.bits : x.word[k / 2] | (u32)y.bits << 16; // in the order of k
    }
};
template <> struct Words<f32> {
    static DEVICE_MEMBER float get(PRIVATE const Wide16& x, u32 k) { return bits_float(x.word[k]); }
    static DEVICE_MEMBER void put(PRIVATE Wide16& x, u32 k, f32 y) { x.word[k] = float_bits(y); }
};

// load_words reads elements from column c on, and takes those behind the row for 0.
template <class T> DEVICE Wide16 load_words(GLOBAL const T* row, u32 c, NormGradsParams p) {
    const u32 per = 16 / sizeof(T);
    if (p.wide && c + per <= p.cols) return *(GLOBAL const Wide16*)(row + c);
    Wide16 x;
    UNROLL for (u32 k = 0; k < per; k++) {
        T y = narrow<T>(0.0f);
        if (c + k < p.cols) y = row[c + k];
        Words<T>::put(x, k, y);
    }
    return x;
}

template <class T> DEVICE void store_words(GLOBAL T* row, u32 c, Wide16 x, NormGradsParams p) {
    const u32 per = 16 / sizeof(T);
    if (p.wide && c + per <= p.cols) {
        *(GLOBAL Wide16*)(row + c) = x;
        return;
    }
    UNROLL for (u32 k = 0; k < per; k++)
        if (c + k < p.cols) row[c + k] = narrow<T>(Words<T>::get(x, k)); // a number of type T
}

// LaneRow is what a lane has of a row: words that are step elements apart.
template <class T> struct LaneRow {
    enum { PER = 16 / sizeof(T), PACKS = GRADS_LANE / PER };
    Wide16 x[PACKS];

    // load reads them from column c on.
    DEVICE_MEMBER void load(GLOBAL const T* row, u32 c, u32 step, NormGradsParams p) {
        UNROLL for (u32 i = 0; i < PACKS; i++) x[i] = load_words(row, c + i * step, p);
    }
};

// team_sums returns the sums of two numbers over the warps of a team, in their order. All threads of the block call
// it; turn, 0 or 1, changes between calls.
DEVICE void team_sums(Thread t, u32 team, PRIVATE float& a, PRIVATE float& b, u32 turn, GROUP float* scratch) {
    a = warp_sum(a), b = warp_sum(b);
    if (team == 1) return;
    scratch += turn * 2 * GRADS_WARPS;
    if (lane_of(t) == 0) scratch[2 * warp_of(t)] = a, scratch[2 * warp_of(t) + 1] = b;
    sync_threads();
    scratch += 2 * (warp_of(t) / team * team);
    a = b = 0.0f;
    UNROLL_1 for (u32 w = 0; w < team; w++) a += scratch[2 * w], b += scratch[2 * w + 1];
}

template <class T, bool centered>
DEVICE void norm_grads(Thread t, GLOBAL T* dx, GLOBAL f32* ws, GLOBAL const T* dy, GLOBAL const T* x, GLOBAL const f32* mean,
                       GLOBAL const f32* rstd, GLOBAL const T* gamma, NormGradsParams p, GROUP float* scratch, GROUP float* room) {
    const u32 per = LaneRow<T>::PER, packs = LaneRow<T>::PACKS;
    const bool early = sizeof(T) < 4; // the next row is loaded before the team waits: 32 registers in float32
    u32 teams = GRADS_WARPS / p.team, step = p.team * WARP * per, first = (warp_of(t) % p.team * WARP + lane_of(t)) * per;
    u64 lo = t.block * p.part_rows, hi = least(lo + p.part_rows, p.rows), row = lo + warp_of(t) / p.team;
    LaneRow<T> w, d, v, next_d, next_v;
    float g[GRADS_LANE], b[GRADS_LANE];
    UNROLL for (u32 k = 0; k < GRADS_LANE; k++) g[k] = b[k] = 0.0f;
    if (early && row < hi) {
        d.load(dy + row * p.cols, first, step, p);
        v.load(x + row * p.cols, first, step, p);
    }
    u32 turn = 0;
    UNROLL_1 for (u64 base = lo; base < hi; base += teams, row += teams, turn ^= 1) {
        bool live = row < hi;
        float m = 0.0f, s = 0.0f, sum = 0.0f, sum_x = 0.0f;
        if (live) {
            w.load(gamma, first, step, p); // from the caches: it would take too many registers to keep
            if (!early) {
                d.load(dy + row * p.cols, first, step, p);
                v.load(x + row * p.cols, first, step, p);
            }
            if (centered) m = mean[row];
            s = rstd[row];
            UNROLL for (u32 i = 0; i < packs; i++) {
                if (first + i * step >= p.cols) continue;
                UNROLL for (u32 k = 0; k < per; k++) {
                    float y = Words<T>::get(d.x[i], k), xhat = (Words<T>::get(v.x[i], k) - m) * s, product = y * Words<T>::get(w.x[i], k);
                    g[i * per + k] = fused_mul_add(y, xhat, g[i * per + k]);
                    if (centered) b[i * per + k] += y;
                    sum += product;
                    sum_x = fused_mul_add(product, xhat, sum_x);
                }
            }
        }
        if (early && row + teams < hi) {
            next_d.load(dy + (row + teams) * p.cols, first, step, p);
            next_v.load(x + (row + teams) * p.cols, first, step, p);
        }
        team_sums(t, p.team, sum, sum_x, turn, scratch);
        if (live) {
            float avg = centered ? sum / (float)p.cols : 0.0f, avg_x = sum_x / (float)p.cols;
            UNROLL for (u32 i = 0; i < packs; i++) {
                u32 c = first + i * step;
                if (c >= p.cols) continue;
                Wide16 to, old = d.x[i];
                if (p.beta != 0.0f) old = load_words<T>(dx + row * p.cols, c, p);
                UNROLL for (u32 k = 0; k < per; k++) {
                    float xhat = (Words<T>::get(v.x[i], k) - m) * s;
                    float z = s * (Words<T>::get(d.x[i], k) * Words<T>::get(w.x[i], k) - avg - xhat * avg_x) * p.alpha;
                    if (p.beta != 0.0f) z += p.beta * Words<T>::get(old, k);
                    Words<T>::put(to, k, narrow<T>(z));
                }
                store_words<T>(dx + row * p.cols, c, to, p);
            }
        }
        if (early) d = next_d, v = next_v;
    }

    ws += (u64)t.block * (centered ? 2 : 1) * p.cols;
    UNROLL for (u32 i = 0; i < packs; i++) {
        UNROLL for (u32 which = 0; which < (centered ? 2 : 1); which++) {
            sync_threads(); // for the readers of the room
            UNROLL for (u32 k = 0; k < per; k++) room[k * GRADS_STRIDE + t.local] = which == 0 ? g[i * per + k] : b[i * per + k];
            sync_threads();
            UNROLL_1 for (u32 q = t.local; q < step && i * step + q < p.cols; q += GRADS_THREADS) {
                GROUP const float* from = room + q % per * GRADS_STRIDE + q / per;
                float sum = 0.0f;
                UNROLL_1 for (u32 j = 0; j < GRADS_THREADS; j += p.team * WARP) sum += from[j];
                ws[which * p.cols + i * step + q] = sum;
            }
        }
    }
}

#define GRADS_ROOM(T)                             \
    SHARED(float, scratch, 2 * 2 * GRADS_WARPS); \
    SHARED(float, room, 16 / sizeof(T) * GRADS_STRIDE)

#define LAYERNORM_GRADS(T)                                                                                                  \
    KERNEL(fused_layernorm_grads_##T, GRADS_THREADS, OPERAND(T, dx, 0), OPERAND(f32, ws, 1), OPERAND(const T, dy, 2),       \
           OPERAND(const T, x, 3), OPERAND(const f32, mean, 4), OPERAND(const f32, rstd, 5), OPERAND(const T, gamma, 6),    \
           PARAMS(NormGradsParams, p)) {                                                                                    \
        GRADS_ROOM(T);                                                                                                      \
        norm_grads<T, true>(THREAD, dx, ws, dy, x, mean, rstd, gamma, p, scratch, room);                                    \
    }
FOR_FLOATS(LAYERNORM_GRADS)

#define RMSNORM_GRADS(T)                                                                                                    \
    KERNEL(fused_rmsnorm_grads_##T, GRADS_THREADS, OPERAND(T, dx, 0), OPERAND(f32, ws, 1), OPERAND(const T, dy, 2),         \
           OPERAND(const T, x, 3), OPERAND(const f32, rstd, 4), OPERAND(const T, gamma, 5), PARAMS(NormGradsParams, p)) {   \
        GRADS_ROOM(T);                                                                                                      \
        norm_grads<T, false>(THREAD, dx, ws, dy, x, 0, rstd, gamma, p, scratch, room);                                      \
    }
FOR_FLOATS(RMSNORM_GRADS)
