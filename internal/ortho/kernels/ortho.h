// What package ortho does between products of matrices.
#pragma once
#include "elements.h"
#include "wide.h"

// block_total adds the sums of the threads of a block, which all call it.
DEVICE Wide block_total(Thread t, Wide mine, GROUP Wide* sums) {
    sums[t.local] = mine;
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) sums[t.local] = wide_sum(sums[t.local], sums[t.local + d]);
    }
    sync_threads();
    return sums[0];
}

// ---- squares: block b writes the sum of the squares that it saw as part number b, a
// double, of whose halves the lower one comes first: parts lie at multiples of 4 bytes.

struct SquaresParams { u64 n; };

KERNEL(ortho_squares, 256, OPERAND(u32, parts, 0), OPERAND(const f32, x, 1), PARAMS(SquaresParams, q)) {
    SHARED(Wide, sums, 256);
    Thread t = THREAD;
    Wide sum = wide_zero();
    for (u64 i = (u64)t.block * t.threads + t.local; i < q.n; i += (u64)t.blocks * t.threads) sum = wide_sum(sum, wide_square(x[i]));
    u64 total = double_of_wide(block_total(t, sum, sums));
    if (t.local > 0) return;
    parts[2 * t.block] = (u32)total;
    parts[2 * t.block + 1] = (u32)(total >> 32);
}

// ---- scale: x ← x/max(√(sum of the parts), least).

struct ScaleParams {
    u64 n;
    u32 parts;
    f32 least;
};

// root_of returns the root of a double, or 0 for one below 2^-100. It errs by 2^-23 of it.
DEVICE float root_of(u64 bits) {
    i32 exponent = (i32)(bits >> 52) - 1023;
    if (exponent < -100) return 0;
    float x = bits_float(0x3f800000u | ((u32)(bits >> 29) & 0x7fffffu)); // from 1 to 2
    if (exponent & 1) x *= 2, exponent--;
    return square_root(x) * bits_float((u32)(exponent / 2 + 127) << 23);
}

KERNEL(ortho_scale, 256, OPERAND(f32, x, 0), OPERAND(const u32, parts, 1), PARAMS(ScaleParams, q)) {
    SHARED(Wide, sums, 256);
    Thread t = THREAD;
    Wide sum = wide_zero();
    for (u32 i = t.local; i < q.parts; i += t.threads) sum = wide_sum(sum, wide_of_double((u64)parts[2 * i + 1] << 32 | parts[2 * i]));
    float factor = 1.0f / maximum(root_of(double_of_wide(block_total(t, sum, sums))), q.least);
    for (u64 i = (u64)t.block * t.threads + t.local; i < q.n; i += (u64)t.blocks * t.threads) x[i] *= factor;
}

// ---- start: b ← factor1·I + factor3·a, for k×k elements.

struct StartParams {
    u64 k;
    f32 factor1, factor3;
};

KERNEL(ortho_start, 256, OPERAND(f32, b, 0), OPERAND(const f32, a, 1), PARAMS(StartParams, q)) {
    Thread t = THREAD;
    for (u64 i = (u64)t.block * t.threads + t.local; i < q.k * q.k; i += (u64)t.blocks * t.threads) {
        float x = q.factor3 * a[i];
        b[i] = i % (q.k + 1) == 0 ? x + q.factor1 : x;
    }
}

// ---- copy: rows of src, one behind the other, to rows of dst that lie apart.

struct CopyParams { u64 rows, cols, stride; };

KERNEL(ortho_copy, 256, OPERAND(f32, dst, 0), OPERAND(const f32, src, 1), PARAMS(CopyParams, q)) {
    Thread t = THREAD;
    for (u64 i = t.block_y; i < q.rows; i += t.blocks_y)
        for (u64 j = (u64)t.block * t.threads + t.local; j < q.cols; j += (u64)t.blocks * t.threads)
            dst[i * q.stride + j] = src[i * q.cols + j];
}
