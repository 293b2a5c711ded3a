// CUDA's built-in names, for the emulator.
#pragma once
#include "emu.h"

#define SNUG_LINKAGE extern "C"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)

#if !defined(SNUG_PORTABLE)
// cvt.f32.f16: a NaN becomes the one that NVIDIA's arithmetic gives.
#define SNUG_WIDEN_F16
inline float widen_f16(unsigned short h) {
    unsigned sign = (h & 0x8000u) << 16, a = h & 0x7fffu, bits;
    if (a > 0x7c00u) bits = 0x7fffffffu;
    else if (a == 0x7c00u) bits = sign | 0x7f800000u;
    else if (a >= 0x400u) bits = sign | ((a << 13) + 0x38000000u);
    else {
        float x = (float)a * 5.9604644775390625e-8f; // 2^-24
        memcpy(&bits, &x, sizeof bits);
        bits |= sign;
    }
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
#endif

#define threadIdx (snug_self()->local)
#define blockDim (snug_self()->threads)
#define blockIdx (snug_self()->block)
#define gridDim (snug_self()->blocks)

inline void __syncthreads() { snug_block_barrier(); }

inline void snug_full(unsigned mask) {
    if (mask != 0xffffffffu) snug_fault("a warp operation with a mask that is not full");
}
inline void __syncwarp(unsigned mask = 0xffffffffu) {
    snug_full(mask);
    snug_warp_barrier();
}
template <class T> T __shfl_sync(unsigned mask, T x, int lane) {
    snug_full(mask);
    return snug::exchange(x, (unsigned)lane);
}
template <class T> T __shfl_xor_sync(unsigned mask, T x, int lanes) {
    snug_full(mask);
    return snug::exchange(x, snug_self()->lane ^ (unsigned)lanes);
}
inline unsigned __ballot_sync(unsigned mask, bool x) {
    snug_full(mask);
    return snug::ballot(x);
}
inline void atomicMin(unsigned* p, unsigned x) { snug_atomic_min(p, x); }
inline void atomicAdd(unsigned* p, unsigned x) { snug_atomic_add(p, x); }
