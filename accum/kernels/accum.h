// Kernels of package accum. Each does what the Go function of its job does.
#pragma once
#include "search.h"

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

KERNEL(accum_decay, 256, OPERAND(f32, acc, 0), PARAMS(AccumulateParams, p)) {
    Thread t = THREAD;
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

// ---- inspect: the first value that is not finite. Block b looks at piece b
// and writes record b.

struct InspectParams {
    u64 n, piece; // elements of the gradient and of a piece, a multiple of those of a pack
    i32 param;
    u32 wide;
};

// Record is as inspect.go has it; param is 0 for none.
struct Record {
    i32 param, index;
    u32 value;
};

struct NotFinite {
    DEVICE_MEMBER bool operator()(float x) const { return !is_finite(x); }
};

template <class T>
DEVICE void inspect(Thread t, GLOBAL const T* g, GLOBAL Record* records, InspectParams p, GROUP u32* first) {
    GLOBAL Record* record = records + t.block;
    if (record->param != 0 && record->param < p.param) return;
    u64 lo = t.block * p.piece;
    block_first(t, first_where(t, g + lo, (u32)least(p.piece, p.n - lo), p.wide, NotFinite()), first);
    if (t.local == 0 && first[0] != NONE) *record = Record{p.param, (i32)first[0], float_bits(widen(g[lo + first[0]]))};
}

#define INSPECT(T)                                                                                                   \
    KERNEL(accum_inspect_##T, 256, OPERAND(const T, g, 0), OPERAND(Record, records, 1), PARAMS(InspectParams, p)) {  \
        SHARED(u32, first, 256);                                                                                     \
        inspect<T>(THREAD, g, records, p, first);                                                                    \
    }
FOR_FLOATS(INSPECT)
