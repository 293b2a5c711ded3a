// Exponentials, as internal/rowwise defines them: the same polynomials, each step
// rounded once instead of twice. The bounds are over all numbers.
#pragma once

// exp2_of returns 2^x within 1.02 ulp, 0 below the normal numbers, x = -126.
DEVICE float exp2_of(float x) {
    if (x < -126.0f) return 0.0f;
    if (!(x < 128.0f)) return x + bits_float(0x7f800000u); // NaN stays NaN
    float t = x + 12582912.0f; // 1.5·2^23: now the integer next to x lies in the low bits
    float r = x - (t - 12582912.0f);
    float p = fused_mul_add(r, 0.0001559467754900736f, 0.001340664390501221f);
    p = fused_mul_add(r, p, 0.009617692974894307f);
    p = fused_mul_add(r, p, 0.05550310550995927f);
    p = fused_mul_add(r, p, 0.24022652782876044f);
    p = fused_mul_add(r, p, 0.6931472149680394f);
    p = fused_mul_add(r, p, 1.0f);
    return bits_float(float_bits(p) + (float_bits(t) << 23));
}

// exp_of returns e^x within 1.03 ulp where it is a normal number.
DEVICE float exp_of(float x) {
    if (!(x > -104.0f)) return is_nan(x) ? x : 0.0f;
    if (x > 88.73f) return bits_float(0x7f800000u);
    float t = fused_mul_add(x, 1.44269504088896341f, 12582912.0f);
    i32 n = (i32)float_bits(t) - 0x4b400000;
    t -= 12582912.0f;
    float r = fused_mul_add(t, -0.693359375f, x);
    r = fused_mul_add(t, 2.12194440e-4f, r);
    float p = fused_mul_add(r, 1.9875691500e-4f, 1.3981999507e-3f);
    p = fused_mul_add(r, p, 8.3334519073e-3f);
    p = fused_mul_add(r, p, 4.1665795894e-2f);
    p = fused_mul_add(r, p, 1.6666665459e-1f);
    p = fused_mul_add(r, p, 5.0000001201e-1f);
    p = fused_mul_add(p * r, r, r) + 1.0f;
    i32 lower = n >> 1; // 2^n as two factors: n may be 128, and below -126
    return p * bits_float((u32)(lower + 127) << 23) * bits_float((u32)(n - lower + 127) << 23);
}

// Logistic is s = 1/(1 + 2^-t) and its derivative by t·ln2, s·(1 - s). The half of
// s that is small has a small error, and the other is 1 minus it.
struct Logistic { float s, slope; };

DEVICE Logistic logistic_of(float t) {
    float e = exp2_of(-magnitude(t));
    float d = 1.0f / (1.0f + e);
    float s = e * d;
    return Logistic{t > 0.0f ? 1.0f - s : s, s * d};
}
