// Kernels of package accum. Each does what the Go function of its job does.
#pragma once
#include "measure.h"
#include "random.h"

// ---- accumulate: acc = alpha·g + beta·acc with both products rounded, or
// alpha·g for a beta of 0, which then does not read acc.

struct AccumulateParams {
    u64 n;
    f32 alpha, beta;
    u32 wide; // both operands start at multiples of 16 bytes
    u32 unused;
};

template <class T> DEVICE void accumulate(Thread t, GLOBAL f32* acc, GLOBAL const T* g, AccumulateParams p) {
    GLOBAL Pack<f32, 4>* to = (GLOBAL Pack<f32, 4>*)acc;
    GLOBAL const Pack<T, 4>* from = (GLOBAL const Pack<T, 4>*)g;
    u64 begin = (u64)t.block * t.threads + t.local, step = (u64)t.blocks * t.threads, packs = p.wide ? p.n / 4 : 0;
    for (u64 i = begin; i < packs; i += FLIGHT * step) {
        Pack<f32, 4> a[FLIGHT];
        Pack<T, 4> x[FLIGHT];
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            if (i + j * step >= packs) break;
            x[j] = from[i + j * step];
            if (p.beta != 0) a[j] = to[i + j * step];
        }
        UNROLL for (u32 j = 0; j < FLIGHT; j++) {
            if (i + j * step >= packs) break;
            UNROLL for (u32 k = 0; k < 4; k++) {
                float y = p.alpha * widen(x[j].x[k]);
                a[j].x[k] = p.beta != 0 ? y + p.beta * a[j].x[k] : y;
            }
            to[i + j * step] = a[j];
        }
    }
    for (u64 i = packs * 4 + begin; i < p.n; i += step) {
        float y = p.alpha * widen(g[i]);
        acc[i] = p.beta != 0 ? y + p.beta * acc[i] : y;
    }
}

#define ACCUMULATE(T)                                                                                                    \
    KERNEL(accum_accumulate_##T, 256, OPERAND(f32, acc, 0), OPERAND(const T, g, 1), PARAMS(AccumulateParams, p)) {      \
        accumulate<T>(THREAD, acc, g, p);                                                                                \
    }
FOR_FLOATS(ACCUMULATE)

// ---- decay: acc = beta·acc, or 0 for a beta of 0, which then does not read
// acc.

DEVICE void decay(Thread t, GLOBAL f32* acc, AccumulateParams p) {
    GLOBAL Pack<f32, 4>* to = (GLOBAL Pack<f32, 4>*)acc;
    u64 begin = (u64)t.block * t.threads + t.local, step = (u64)t.blocks * t.threads, packs = p.wide ? p.n / 4 : 0;
    for (u64 i = begin; i < packs; i += step) {
        Pack<f32, 4> a = {{0, 0, 0, 0}};
        if (p.beta != 0) {
            a = to[i];
            UNROLL for (u32 k = 0; k < 4; k++) a.x[k] *= p.beta;
        }
        to[i] = a;
    }
    for (u64 i = packs * 4 + begin; i < p.n; i += step) acc[i] = p.beta != 0 ? p.beta * acc[i] : 0;
}

KERNEL(accum_decay, 256, OPERAND(f32, acc, 0), PARAMS(AccumulateParams, p)) { decay(THREAD, acc, p); }

// ---- measured: accumulate, if asked to, and measure g. Block b does piece b and
// adds what it finds to record b.

struct MeasuredParams {
    u64 n, piece; // elements of the gradient and of a piece, a multiple of those of a pack
    i64 ordinal;
    f32 alpha, beta;
    u32 write; // whether to accumulate
    u32 wide;
    u32 used; // how many records earlier passes have written
    u32 unused;
};

DEVICE float added(float x, float acc, PRIVATE const MeasuredParams& p) {
    float y = p.alpha * x;
    return p.beta != 0 ? y + p.beta * acc : y;
}

// MeasuredPack is a pack of 16 bytes of g, and the elements of acc that go with it.
template <class T> struct MeasuredPack {
    enum { per = 16 / sizeof(T) };
    Pack<T, per> g;
    Pack<f32, 4> acc[per / 4];

    DEVICE_MEMBER void load(GLOBAL const T* from, GLOBAL const f32* to, PRIVATE const MeasuredParams& p) {
        g = load_pack<per>(from);
        if (!p.write || p.beta == 0) return;
        UNROLL for (u32 k = 0; k < per / 4; k++) acc[k] = load_pack<4>(to + 4 * k);
    }

    DEVICE_MEMBER void add(PRIVATE Sums& s, GLOBAL f32* to, PRIVATE const MeasuredParams& p) {
        UNROLL for (u32 k = 0; k < per; k++) add_square(s, k, widen(g.x[k]));
        if (!p.write) return;
        UNROLL for (u32 k = 0; k < per / 4; k++) {
            UNROLL for (u32 l = 0; l < 4; l++) acc[k].x[l] = added(widen(g.x[4 * k + l]), acc[k].x[l], p);
            store_pack<4>(to + 4 * k, acc[k]);
        }
    }
};

// measured measures this thread's elements of a piece, and returns the sum of their squares.
template <class T> DEVICE Wide measured(Thread t, GLOBAL const T* g, GLOBAL f32* acc, Piece piece, MeasuredParams p) {
    const u32 per = MeasuredPack<T>::per, flight = 16 / per; // with 16 bytes of acc for each 4 elements
    Sums s = no_sums();
    u64 i = piece.lo + t.local * per, step = (u64)t.threads * per;
    for (; i + (flight - 1) * step < piece.whole; i += flight * step) {
        MeasuredPack<T> x[flight];
        UNROLL for (u32 j = 0; j < flight; j++) x[j].load(g + i + j * step, acc + i + j * step, p);
        UNROLL for (u32 j = 0; j < flight; j++) x[j].add(s, acc + i + j * step, p);
    }
    for (; i < piece.whole; i += step) {
        MeasuredPack<T> x;
        x.load(g + i, acc + i, p);
        x.add(s, acc + i, p);
    }
    for (i = piece.whole + t.local; i < piece.hi; i += t.threads) {
        add_square(s, 0, widen(g[i]));
        if (p.write) acc[i] = added(widen(g[i]), p.beta != 0 ? acc[i] : 0, p);
    }
    return sum_of(s);
}

#define MEASURED(T)                                                                                                     \
    KERNEL(accum_measured_##T, 256, OPERAND(const T, g, 0), OPERAND(f32, acc, 1), OPERAND(Record, records, 2),         \
           PARAMS(MeasuredParams, p)) {                                                                                 \
        SHARED(Scratch, scratch, 256);                                                                                  \
        Thread t = THREAD;                                                                                              \
        Piece piece = piece_of(t, p.n, p.piece, 16 / sizeof(T), p.wide);                                                \
        Wide squares = measured<T>(t, g, acc, piece, p);                                                                \
        add_found(t, squares, g, piece, p.ordinal, records + t.block, t.block < p.used, scratch);                       \
    }
FOR_FLOATS(MEASURED)

// ---- rounded: accumulate for a bf16 acc; the sum is rounded at random, by the
// 16-bit half number i of a stream. A thread takes the 8 elements of one Philox
// block at a time.

struct RoundedParams {
    u64 n, seed, tensor;
    f32 alpha, beta;
    u32 add;  // whether there is a gradient
    u32 wide; // both operands start at multiples of 16 bytes
};

DEVICE bf16 rounded(float x, bf16 acc, u32 draw, PRIVATE const RoundedParams& p) {
    float y = p.beta * widen(acc);
    if (p.add) {
        float z = p.alpha * x;
        y = p.beta != 0 ? z + y : z;
    }
    return round_at_random<bf16>(p.add || p.beta != 0 ? y : 0, draw);
}

template <class T> DEVICE void round_sums(Thread t, GLOBAL const T* g, GLOBAL bf16* acc, RoundedParams p) {
    u64 groups = (p.n + 7) / 8, step = (u64)t.blocks * t.threads;
    for (u64 i = (u64)t.block * t.threads + t.local; i < groups; i += step) {
        Words4 r = philox(p.seed, p.tensor, i);
        u64 at = i * 8;
        if (p.wide && at + 8 <= p.n) {
            T x[8];
            load_eight(x, g + at); // anything where there is no gradient
            Pack<bf16, 8> a = load_pack<8>(acc + at);
            UNROLL for (u32 k = 0; k < 8; k++) a.x[k] = rounded(widen(x[k]), a.x[k], half_of(r, k), p);
            store_pack<8>(acc + at, a);
            continue;
        }
        UNROLL for (u32 k = 0; k < 8; k++)
            if (at + k < p.n) acc[at + k] = rounded(widen(g[at + k]), acc[at + k], half_of(r, k), p);
    }
}

#define ROUNDED(T)                                                                                                       \
    KERNEL(accum_rounded_##T, 256, OPERAND(const T, g, 0), OPERAND(bf16, acc, 1), PARAMS(RoundedParams, p)) {           \
        round_sums(THREAD, g, acc, p);                                                                                   \
    }
FOR_FLOATS(ROUNDED)

#if defined(SNUG_CUDA)

// ---- the same of many vectors in one launch. A vector of type 0 is zero.

enum { MAX_SUMS = 120, MAX_ROUNDED = 96 };

struct SumItem {
    u64 acc, g, n; // addresses, elements
    u32 first, type;
};

struct SumsParams {
    f32 alpha, beta;
    u32 count, unused;
    SumItem items[MAX_SUMS];
};

KERNEL(accum_sums, 256, PARAMS(SumsParams, all)) {
    Thread t = THREAD;
    u32 i = item_of(t.block, all);
    SumItem item = all.items[i];
    t = of_item(t, i, all);
    AccumulateParams p = {item.n, all.alpha, all.beta, is_wide(item.acc, item.g), 0};
    GLOBAL f32* acc = at_address<f32>(item.acc);
    if (item.type == 0) decay(t, acc, p);
    else if (item.type == 1) accumulate(t, acc, at_address<const f32>(item.g), p);
    else if (item.type == 2) accumulate(t, acc, at_address<const f16>(item.g), p);
    else accumulate(t, acc, at_address<const bf16>(item.g), p);
}

struct MeasuredItem {
    u64 g, acc, n; // acc is 0 where g is measured only
    u32 first, type, piece, ordinal;
};

struct MeasuredManyParams {
    f32 alpha, beta;
    u32 count, unused;
    MeasuredItem items[MAX_VECTORS];
};

template <class T>
DEVICE void measured_item(Thread t, MeasuredItem item, MeasuredParams p, GLOBAL Record* record, GROUP Scratch* scratch) {
    GLOBAL const T* g = at_address<const T>(item.g);
    Piece piece = piece_of(t, p.n, p.piece, 16 / sizeof(T), p.wide);
    Wide squares = measured<T>(t, g, at_address<f32>(p.write ? item.acc : item.g), piece, p);
    add_found(t, squares, g, piece, p.ordinal, record, false, scratch);
}

KERNEL(accum_measured_many, 256, OPERAND(Record, parts, 0), PARAMS(MeasuredManyParams, all)) {
    SHARED(Scratch, scratch, 256);
    Thread t = THREAD;
    u32 i = item_of(t.block, all);
    MeasuredItem item = all.items[i];
    MeasuredParams p = {item.n, item.piece, item.ordinal, all.alpha, all.beta, item.acc != 0, is_wide(item.g, item.acc), 0, 0};
    GLOBAL Record* record = parts + t.block;
    t = of_item(t, i, all);
    if (item.type == 1) measured_item<f32>(t, item, p, record, scratch);
    else if (item.type == 2) measured_item<f16>(t, item, p, record, scratch);
    else measured_item<bf16>(t, item, p, record, scratch);
}

GATHER(accum_gather)

struct RoundedItem {
    u64 acc, g, n, tensor;
    u32 first, type;
};

struct RoundedManyParams {
    u64 seed;
    f32 alpha, beta;
    u32 count, unused;
    RoundedItem items[MAX_ROUNDED];
};

KERNEL(accum_rounded_many, 256, PARAMS(RoundedManyParams, all)) {
    Thread t = THREAD;
    u32 i = item_of(t.block, all);
    RoundedItem item = all.items[i];
    t = of_item(t, i, all);
    GLOBAL bf16* acc = at_address<bf16>(item.acc);
    RoundedParams p = {item.n, all.seed, item.tensor, all.alpha, all.beta, item.type != 0, is_wide(item.acc, item.g)};
    if (item.type == 0) round_sums(t, (GLOBAL const bf16*)acc, acc, p);
    else if (item.type == 1) round_sums(t, at_address<const f32>(item.g), acc, p);
    else if (item.type == 2) round_sums(t, at_address<const f16>(item.g), acc, p);
    else round_sums(t, at_address<const bf16>(item.g), acc, p);
}

#endif
