// CUDA's built-in names, for the emulator.
#pragma once
#include "emu.h"

#define SNUG_LINKAGE extern "C"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __launch_bounds__(...)

#if !defined(SNUG_WAVE)
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
inline void __threadfence() { snug_fence(); }

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

// What hip_wave.h needs. A warp is half a wave of 64 lanes, and the emulator runs it by itself: what the
// other half does at that moment is not known.
#if defined(SNUG_WAVE)
#define __builtin_amdgcn_fence(order, scope)
inline void __builtin_amdgcn_wave_barrier() { snug_warp_barrier(); }
inline unsigned snug_wave_lane() { return snug_self()->local.x % SNUG_WAVE; }
inline unsigned __builtin_amdgcn_mbcnt_lo(unsigned mask, unsigned base) {
    unsigned lane = snug_wave_lane();
    return base + (unsigned)__builtin_popcount(lane < 32 ? mask & ((1u << lane) - 1) : mask);
}
inline unsigned __builtin_amdgcn_mbcnt_hi(unsigned mask, unsigned base) {
    unsigned lane = snug_wave_lane();
    return base + (unsigned)__builtin_popcount(lane < 32 ? 0 : mask & ((1u << (lane - 32)) - 1));
}
inline int __builtin_amdgcn_ds_bpermute(int address, int x) {
    unsigned lane = (unsigned)address / 4 % SNUG_WAVE;
    if (lane / SNUG_LANES != snug_wave_lane() / SNUG_LANES) snug_fault("a lane reads from the other half of its wave");
    return snug::exchange(x, lane);
}
inline unsigned __builtin_amdgcn_ballot_w32(bool x) { return snug::ballot(x); }
inline unsigned long long __builtin_amdgcn_ballot_w64(bool x) {
    unsigned long long own = snug::ballot(x);
    return snug_wave_lane() < SNUG_LANES ? ~0ull << SNUG_LANES | own : own << SNUG_LANES | 0xffffffffull;
}
#include "hip_wave.h"
#endif
