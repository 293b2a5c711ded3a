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
// The hardware counts threads of the grid; all blocks are full.
static __device__ inline HipDim hip_blocks() {
    return {__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
            __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
            __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()};
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

// hip_sync_warp orders what lanes of a warp write and read. They run in
// lockstep, so only the compiler has to be told.
static __device__ inline void hip_sync_warp() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// hip_lane returns the number of the thread in its warp.
static __device__ inline unsigned hip_lane() {
    unsigned low = __builtin_amdgcn_mbcnt_lo(~0u, 0);
#if defined(__GFX9__)
    return __builtin_amdgcn_mbcnt_hi(~0u, low);
#else
    return low;
#endif
}

// hip_shuffle returns the x of another lane, counted modulo the warp.
template <class T> static __device__ inline T hip_shuffle(T x, unsigned lane) {
    static_assert(sizeof(T) % 4 == 0, "a shuffle moves whole words");
    int words[sizeof(T) / 4];
    __builtin_memcpy(words, &x, sizeof(T));
    for (int& word : words) word = __builtin_amdgcn_ds_bpermute((int)(lane * 4), word);
    __builtin_memcpy(&x, words, sizeof(T));
    return x;
}

// hip_any says whether x is true in any lane.
static __device__ inline bool hip_any(bool x) {
#if defined(__GFX9__)
    return __builtin_amdgcn_ballot_w64(x) != 0;
#else
    return __builtin_amdgcn_ballot_w32(x) != 0;
#endif
}

static __device__ inline unsigned atomicMin(unsigned* p, unsigned x) {
    return __hip_atomic_fetch_min(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
static __device__ inline unsigned atomicAdd(unsigned* p, unsigned x) {
    return __hip_atomic_fetch_add(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
