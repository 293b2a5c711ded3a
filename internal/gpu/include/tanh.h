// The hyperbolic tangent of softcaps.
#pragma once
#include "exp.h"

// tanh_of returns tanh x within 1.34 ulp, of all numbers: below 0.625 by the polynomial of Cephes' tanhf
// (Moshier), which is odd, elsewhere by exponentials.
DEVICE float tanh_of(float x) {
    float a = magnitude(x);
    if (a >= 0.625f) {
        float y = a > 9.5f ? 1.0f : 1.0f - 2.0f / (exp_of(2.0f * a) + 1.0f);
        return x < 0 ? -y : y;
    }
    float z = x * x; // NaN too
    float p = fused_mul_add(z, -5.70498872745e-3f, 2.06390887954e-2f);
    p = fused_mul_add(z, p, -5.37397155531e-2f);
    p = fused_mul_add(z, p, 1.33314422036e-1f);
    p = fused_mul_add(z, p, -3.33332819422e-1f);
    return fused_mul_add(p * z, x, x);
}
