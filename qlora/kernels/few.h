// Products of few rows by 4-bit codes.
#pragma once
#include "codes.h"
#include "dequantize.h"

// ---- few: y = x·Wᵀ + beta·y, where rows of W have whole blocks. A warp takes ROWS rows of
// x, those of its block_y, and OUTPUTS outputs; its lanes take runs of neighbouring columns
// in turn, whose values they look up once for all rows. The products of a run are added
// before they are multiplied by absmax.

enum { OUTPUTS = 4, RUN = 8 };

struct FewShape {
    u64 out, in;
    u32 rows, shift; // a block has 2^shift elements
    u32 type, wide;  // of y; x and the codes start at multiples of 16 bytes
    u32 nested;      // whether absmax is in codes
    f32 beta;
};

struct FewParams {
    FewShape shape;
    f32 offset;
    u32 unused;
    f32 values[16];
    f32 map[256];
};

// load_run loads RUN elements of x.
template <bool WIDE, class T> DEVICE void load_run(PRIVATE float* to, GLOBAL const T* x) {
    const u32 per = 16 / sizeof(T);
    UNROLL for (u32 k = 0; k < RUN; k += per) {
        Pack<T, per> pack = {};
        if (WIDE) pack = load_pack<per>(x + k);
        UNROLL for (u32 e = 0; e < per; e++) {
            if (!WIDE) pack.x[e] = x[k + e];
            to[k + e] = widen(pack.x[e]);
        }
    }
}

// Outputs are those of a warp. Where there are fewer, the last stands for the others.
struct Outputs { u64 first, last; };

DEVICE u64 element_of(Outputs outs, u32 o, u64 in, u64 column) { return least(outs.first + o, outs.last) * in + column; }

// Steps are runs of a lane that it loads before it multiplies.
template <int STEPS, bool WIDE> struct Steps {
    u64 at[STEPS]; // the column, or one at the end that is there
    u32 codes[STEPS][OUTPUTS];
    float absmax[STEPS][OUTPUTS];

    DEVICE_MEMBER void load(Thread t, Outputs outs, FewShape p, u64 from, GLOBAL const u8* packed) {
        UNROLL for (u32 s = 0; s < STEPS; s++) {
            at[s] = least(from + (s * WARP + lane_of(t)) * RUN, p.in - RUN);
            UNROLL for (u32 o = 0; o < OUTPUTS; o++) codes[s][o] = load_codes<WIDE>(packed + element_of(outs, o, p.in, at[s]) / 2);
        }
    }

    template <class S> DEVICE_MEMBER void scale(Outputs outs, FewShape p, S maxima) {
        UNROLL for (u32 s = 0; s < STEPS; s++)
            UNROLL for (u32 o = 0; o < OUTPUTS; o++) absmax[s][o] = maxima.of(element_of(outs, o, p.in, at[s]) >> p.shift);
    }
};

template <int ROWS> struct Sums { float of[OUTPUTS][ROWS]; };

// multiply adds the products of one run.
template <bool WIDE, class T, int ROWS>
DEVICE void multiply(PRIVATE Sums<ROWS>& sums, FewShape p, GLOBAL const T* x, PRIVATE const u32* codes, PRIVATE const float* absmax,
                     GROUP const f32* values) {
    float w[OUTPUTS][RUN];
    UNROLL for (u32 o = 0; o < OUTPUTS; o++)
        UNROLL for (u32 k = 0; k < RUN; k++) w[o][k] = values[code(codes[o], k)];
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        float v[RUN];
        load_run<WIDE>(v, x + least(r, p.rows - 1) * p.in);
        UNROLL for (u32 o = 0; o < OUTPUTS; o++) {
            float part = v[0] * w[o][0];
            UNROLL for (u32 k = 1; k < RUN; k++) part = fused_mul_add(v[k], w[o][k], part);
            sums.of[o][r] = fused_mul_add(part, absmax[o], sums.of[o][r]);
        }
    }
}

template <class D> DEVICE void blend_one(GLOBAL D* y, float sum, float beta) {
    if (beta != 0) sum += beta * widen(*y);
    *y = narrow<D>(sum);
}

// store adds the sums of all lanes; every lane finishes one element of y.
template <int ROWS> DEVICE void store(Thread t, PRIVATE const Sums<ROWS>& sums, Outputs outs, FewShape p, GLOBAL u8* y) {
    u32 lane = lane_of(t), row = lane / OUTPUTS;
    float mine = 0;
    UNROLL for (u32 r = 0; r < ROWS; r++)
        UNROLL for (u32 o = 0; o < OUTPUTS; o++) {
            float sum = warp_sum(sums.of[o][r]);
            if (lane == r * OUTPUTS + o) mine = sum;
        }
    u64 j = outs.first + lane % OUTPUTS, at = ((u64)t.block_y * ROWS + row) * p.out + j;
    if (row >= p.rows || j > outs.last) return;
    if (p.type == 0) blend_one((GLOBAL f32*)y + at, mine, p.beta);
    else if (p.type == 1) blend_one((GLOBAL f16*)y + at, mine, p.beta);
    else blend_one((GLOBAL bf16*)y + at, mine, p.beta);
}

template <int ROWS, int STEPS, bool WIDE, class T>
DEVICE void few(Thread t, GLOBAL u8* y, GLOBAL const T* x, GLOBAL const u8* packed, Single single, Double nested, FewShape p,
                GROUP const f32* values) {
    u32 skip = t.block_y * ROWS, warps = t.threads / WARP;
    x += skip * p.in;
    p.rows = least(p.rows - skip, (u32)ROWS);
    for (u64 w = (u64)t.block * warps + warp_of(t); w * OUTPUTS < p.out; w += (u64)t.blocks * warps) {
        Outputs outs = {w * OUTPUTS, p.out - 1};
        Sums<ROWS> sums = {};
        for (u64 from = 0; from < p.in; from += STEPS * WARP * RUN) {
            Steps<STEPS, WIDE> steps;
            steps.load(t, outs, p, from, packed);
            if (p.nested) steps.scale(outs, p, nested);
            else steps.scale(outs, p, single);
            UNROLL for (u32 s = 0; s < STEPS; s++)
                if (from + (s * WARP + lane_of(t)) * RUN < p.in)
                    multiply<WIDE>(sums, p, x + steps.at[s], steps.codes[s], steps.absmax[s], values);
        }
        store(t, sums, outs, p, y);
    }
}

#define FEW(T, ROWS)                                                                                            \
    KERNEL(qlora_few##ROWS##_##T, 128, OPERAND(u8, y, 0), OPERAND(const T, x, 1), OPERAND(const u8, packed, 2), \
           OPERAND(const f32, absmax, 3), OPERAND(const u8, codes, 4), OPERAND(const f32, nested, 5),           \
           PARAMS(FewParams, p)) {                                                                              \
        SHARED(f32, values, 16);                                                                                \
        SHARED(f32, map, 256);                                                                                  \
        Thread t = THREAD;                                                                                      \
        FILL16(values);                                                                                         \
        for (u32 k = t.local; k < 256; k += t.threads) map[k] = p.map[k];                                       \
        sync_threads();                                                                                         \
        Single single = {absmax};                                                                               \
        Double twice = {codes, nested, map, p.offset};                                                          \
        if (p.shape.wide) few<ROWS, ROWS < 4 ? 4 : 2, true>(t, y, x, packed, single, twice, p.shape, values);   \
        else few<ROWS, 1, false>(t, y, x, packed, single, twice, p.shape, values);                              \
    }
#define FEW_OF(T) FEW(T, 1) FEW(T, 2) FEW(T, 4) FEW(T, 8)
FOR_FLOATS(FEW_OF)
