// The functions that clang and gcc have built in and NVIDIA's compiler has under
// names of its own.
#pragma once

template <class T, class F> static __device__ inline T cuda_bit_cast(F x) {
    static_assert(sizeof(T) == sizeof(F), "a bit cast to another size");
    T y;
    memcpy(&y, &x, sizeof y);
    return y;
}

#define __builtin_bit_cast(T, x) cuda_bit_cast<T>(x)
#define __builtin_fmaf __fmaf_rn
#define __builtin_sqrtf __fsqrt_rn
#define __builtin_fabsf fabsf
