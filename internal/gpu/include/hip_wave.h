// Exchange between the lanes of a warp in HIP. A wave has SNUG_WAVE lanes, which run in lockstep. A warp
// has 32 on all cards, so that kernels have the same warps and sums have the same order as
// on NVIDIA's. Where a wave has 64 lanes each half of it is a warp. The halves may be at different
// places of a kernel, so no function reads from the other half. The emulator has the functions
// that start with __builtin_amdgcn_.
#pragma once

// hip_lane returns the number of the thread in its wave.
static __device__ inline unsigned hip_lane() {
    unsigned low = __builtin_amdgcn_mbcnt_lo(~0u, 0);
#if SNUG_WAVE == 64
    return __builtin_amdgcn_mbcnt_hi(~0u, low);
#else
    return low;
#endif
}

// hip_sync_warp orders what lanes of a warp write and read. They run in
// lockstep, so only the compiler has to be told.
static __device__ inline void hip_sync_warp() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// hip_shuffle returns the x of another lane of the warp, counted modulo 32.
template <class T> static __device__ inline T hip_shuffle(T x, unsigned lane) {
    static_assert(sizeof(T) % 4 == 0, "a shuffle moves whole words");
    unsigned from = SNUG_WAVE == 64 ? (hip_lane() & 32) | (lane & 31) : lane & 31;
    int words[sizeof(T) / 4];
    __builtin_memcpy(words, &x, sizeof(T));
    for (int& word : words) word = __builtin_amdgcn_ds_bpermute((int)(from * 4), word);
    __builtin_memcpy(&x, words, sizeof(T));
    return x;
}

// hip_any says whether x is true in any lane of the warp.
static __device__ inline bool hip_any(bool x) {
#if SNUG_WAVE == 64
    return (unsigned)(__builtin_amdgcn_ballot_w64(x) >> (hip_lane() & 32)) != 0;
#else
    return __builtin_amdgcn_ballot_w32(x) != 0;
#endif
}
