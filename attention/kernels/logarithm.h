// Between sums of exponentials and their logarithms.
#pragma once
#include "exp.h"

DEVICE float infinity() { return bits_float(0x7f800000u); }

// log_sum returns ln(2^most · sum), the lse of a row: −Inf for a sum of 0.
DEVICE float log_sum(float most, float sum) {
    if (sum == 0) return -infinity();
    if (!is_finite(sum) || !is_finite(most)) return most + sum;
    u32 b = float_bits(sum), e = b - 0x3f3504f3u; // sum = 2^n · m, √½ ≤ m < √2
    i32 n = (i32)e >> 23;
    float m = bits_float(b - ((u32)n << 23));
    // ln m = 2 atanh s, by its series: the next term is below 2⁻³⁰ of the first.
    float s = (m - 1) / (m + 1), z = s * s;
    float series = fused_mul_add(z, 2.0f / 9, 2.0f / 7);
    series = fused_mul_add(z, series, 2.0f / 5);
    series = fused_mul_add(z, series, 2.0f / 3);
    float ln = fused_mul_add(s * z, series, 2 * s);
    float whole = most + (float)n;
    return fused_mul_add(whole, 0.693359375f, fused_mul_add(whole, -2.12194440e-4f, ln));
}

// log2_of returns lse in units of log 2, rounded once, as a base for exp2_of; a row
// that sees nothing has +Inf, which makes all its weights 0.
DEVICE float log2_of(float lse) {
    if (!is_finite(lse)) return is_nan(lse) ? lse : infinity();
    float high = lse * 1.44269502f;
    return high + (fused_mul_add(lse, 1.44269502f, -high) + lse * 1.92596299e-8f);
}
