// The names of the Metal shading language that kernels use, for the emulator.
#pragma once
#include "emu.h"

#define SNUG_LINKAGE

#define device
#define threadgroup
#define thread
#define constant const
#define SHARED(T, name, n) SNUG_SHARED T name[n]

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef SnugDim uint3;

struct atomic_uint {
    uint value;
};

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags((int)a | (int)b); }
enum memory_order { memory_order_relaxed };

inline void threadgroup_barrier(mem_flags) { snug_block_barrier(); }
inline void simdgroup_barrier(mem_flags) { snug_warp_barrier(); }
template <class T> T simd_shuffle(T x, ushort lane) { return snug::exchange(x, lane); }
template <class T> T simd_shuffle_xor(T x, ushort mask) { return snug::exchange(x, snug_self()->lane ^ mask); }
inline bool simd_any(bool x) { return snug::ballot(x) != 0; }

inline void atomic_fetch_min_explicit(atomic_uint* p, uint x, memory_order) { snug_atomic_min(&p->value, x); }
inline void atomic_fetch_add_explicit(atomic_uint* p, uint x, memory_order) { snug_atomic_add(&p->value, x); }

template <class T, class F> T as_type(F x) {
    static_assert(sizeof(T) == sizeof(F), "as_type of another size");
    T y;
    memcpy(&y, &x, sizeof y);
    return y;
}
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float fabs(float x) { return __builtin_fabsf(x); }
inline uint mulhi(uint a, uint b) { return (uint)((ulong)a * b >> 32); }
namespace precise {
inline float sqrt(float x) { return __builtin_sqrtf(x); }
} // namespace precise

} // namespace metal
