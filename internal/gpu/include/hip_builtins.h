// CUDA's built-in names for HIP, from the compiler's own functions: no header
// and no device library of ROCm is needed.
#pragma once

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(threads, threads)))

struct HipDim {
    unsigned x, y, z;
};

static __device__ inline HipDim hip_thread() {
    return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()};
}
static __device__ inline HipDim hip_threads() {
    return {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z()};
}
static __device__ inline HipDim hip_block() {
    return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()};
}
// The counts of blocks are the first of the arguments that the runtime adds to a kernel's own.
static __device__ inline HipDim hip_blocks() {
    const unsigned* count = (const unsigned*)__builtin_amdgcn_implicitarg_ptr();
    return {count[0], count[1], count[2]};
}

#define threadIdx hip_thread()
#define blockDim hip_threads()
#define blockIdx hip_block()
#define gridDim hip_blocks()

static __device__ inline void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

#if defined(__GFX9__)
#define SNUG_WAVE 64
#else
#define SNUG_WAVE 32
#endif
#include "hip_wave.h"

static __device__ inline unsigned atomicMin(unsigned* p, unsigned x) {
    return __hip_atomic_fetch_min(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
static __device__ inline unsigned atomicAdd(unsigned* p, unsigned x) {
    return __hip_atomic_fetch_add(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// The instruction rounds to nearest even and knows subnormal numbers.
#define SNUG_NARROW_F16
static __device__ inline unsigned short narrow_f16(float x) { return __builtin_bit_cast(unsigned short, (_Float16)x); }
#define SNUG_WIDEN_F16
static __device__ inline float widen_f16(unsigned short h) {
    unsigned a = h & 0x7fffu;
    if (a > 0x7c00u) return __builtin_bit_cast(float, (h & 0x8000u) << 16 | 0x7f800000u | (a & 0x3ffu) << 13); // NaN, with its payload
    return (float)__builtin_bit_cast(_Float16, h);
}
