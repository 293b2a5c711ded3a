// The kernel dialect in CUDA and HIP; README.md in this folder describes it.
// Only the subset that both compilers share is used, and no header of theirs.
#pragma once
#define SNUG_CUDA 1

#if defined(SNUG_EMU)
#include "emu_cuda.h"
#elif defined(__HIP__)
#include "hip_builtins.h"
#else
#include "cuda_builtins.h"
#endif

#if !defined(SNUG_EMU)
#define SNUG_REGISTER(name, threads, ...)
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef int i32;
typedef unsigned long long u64;
typedef long long i64;
typedef float f32;

#define DEVICE static __device__ inline
#define DEVICE_MEMBER __device__ inline
#define GLOBAL
#define GROUP
#define PRIVATE
#define TABLE static __constant__ const

#if !defined(SHARED)
#define SHARED(T, name, n) __shared__ T name[n]
#endif
#define UNROLL _Pragma("unroll")
#define UNROLL_2 _Pragma("unroll 2")
#define UNROLL_1 _Pragma("unroll 1")

#define OPERAND(T, name, index) T* name
#define PARAMS(P, name) const P name
#define KERNEL(name, threads, ...) \
    SNUG_REGISTER(name, threads, __VA_ARGS__) \
    extern "C" __global__ __launch_bounds__(threads) void name(__VA_ARGS__)

// WARP is the number of threads that exchange values. Where AMD's waves have 64 lanes, each half is a
// warp.
#define WARP 32

// Thread says which thread of a launch this is.
struct Thread {
    u32 local;                  // in its block
    u32 threads;                // of a block
    u32 block, block_y, block_z;
    u32 blocks, blocks_y, blocks_z;
};

#define THREAD                                                              \
    Thread { threadIdx.x, blockDim.x, blockIdx.x, blockIdx.y, blockIdx.z, \
             gridDim.x, gridDim.y, gridDim.z }

// sync_threads waits for all threads of the block and makes what they wrote
// visible to one another. sync_warp does so for a warp.
DEVICE void sync_threads() { __syncthreads(); }

#if defined(SNUG_WAVE)
DEVICE void sync_warp() { hip_sync_warp(); }
template <class T> DEVICE T shuffle(T x, u32 lane) { return hip_shuffle(x, lane); }
template <class T> DEVICE T shuffle_xor(T x, u32 mask) { return hip_shuffle(x, hip_lane() ^ mask); }
DEVICE bool any_of_warp(bool x) { return hip_any(x); }
#else
#define SNUG_ALL 0xffffffffu
DEVICE void sync_warp() { __syncwarp(SNUG_ALL); }
template <class T> DEVICE T shuffle(T x, u32 lane) { return __shfl_sync(SNUG_ALL, x, lane); }
template <class T> DEVICE T shuffle_xor(T x, u32 mask) { return __shfl_xor_sync(SNUG_ALL, x, mask); }
DEVICE bool any_of_warp(bool x) { return __ballot_sync(SNUG_ALL, x) != 0; }
#endif

// atomic_min_u32 lowers *p to x.
DEVICE void atomic_min_u32(u32* p, u32 x) { atomicMin(p, x); }
DEVICE void atomic_add_u32(u32* p, u32 x) { atomicAdd(p, x); }

DEVICE u32 float_bits(float x) { return __builtin_bit_cast(u32, x); }
DEVICE float bits_float(u32 x) { return __builtin_bit_cast(float, x); }

// All of these round to nearest once.
DEVICE float fused_mul_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE float square_root(float x) { return __builtin_sqrtf(x); }
DEVICE float minimum(float a, float b) { return a < b ? a : b; }
DEVICE float maximum(float a, float b) { return a > b ? a : b; }
DEVICE float magnitude(float x) { return __builtin_fabsf(x); }
DEVICE u32 mul_high(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
template <class T> DEVICE T least(T a, T b) { return a < b ? a : b; }
template <class T> DEVICE T greatest(T a, T b) { return a > b ? a : b; }

// narrow_f16 rounds a number that is not NaN to binary16, to nearest even.
#if defined(__CUDA_ARCH__) && !defined(SNUG_EMU)
#define SNUG_NARROW_F16
DEVICE u16 narrow_f16(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
#define SNUG_WIDEN_F16
DEVICE float widen_f16(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
#endif

// Wide16 is 16 bytes that move in one access; addresses are multiples of 16.
struct alignas(16) Wide16 { u32 word[4]; };

#include "snug.h"
