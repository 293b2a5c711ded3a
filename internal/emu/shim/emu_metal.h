// The names of the Metal shading language that kernels use, for the emulator.
#pragma once
#include "emu.h"

#define SNUG_LINKAGE

#define device
#define threadgroup
#define thread
#define constant const

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef SnugDim uint3;
struct ulong2 {
    ulong x, y;
    ulong2(ulong x, ulong y) : x(x), y(y) {}
};

// The 16-bit types, as far as matrices need them.
struct half {
    ushort bits;
};
#if __METAL_VERSION__ >= 310
struct bfloat {
    ushort bits;
};
#endif
inline float snug_float(float x) { return x; }
#if __METAL_VERSION__ >= 310
inline float snug_float(bfloat x) {
    uint b = (uint)x.bits << 16;
    float y;
    memcpy(&y, &b, sizeof y);
    return y;
}
#endif
inline float snug_float(half x) {
    int exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
    double y = exponent == 31 ? (fraction ? NAN : INFINITY) : std::ldexp((double)(exponent ? fraction + 1024 : fraction), (exponent ? exponent : 1) - 25);
    return (float)(x.bits >> 15 ? -y : y);
}

struct atomic_uint {
    uint value;
};

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags((int)a | (int)b); }
enum memory_order { memory_order_relaxed, memory_order_seq_cst };
enum thread_scope { thread_scope_device };
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope) { snug_fence(); }

// The emulator's barriers order all memory, so a barrier of the text must say that it does.
inline void snug_orders_all(mem_flags flags) {
    if ((int)flags != 3) snug_fault("a barrier that does not order both the memory of operands and that of the block");
}
inline void threadgroup_barrier(mem_flags flags) {
    snug_orders_all(flags);
    snug_block_barrier();
}
inline void simdgroup_barrier(mem_flags flags) {
    snug_orders_all(flags);
    snug_warp_barrier();
}
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

// simdgroup_matrix: lane i holds two neighbours of one row. The language does
// not define which; this is how Apple's GPUs do it, and kernels ask acc_row.
template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "matrices are 8×8");
    T element[2];
    typedef T Pair[2];
    Pair& thread_elements() { return element; }
};

inline unsigned snug_row() { return snug_self()->lane / 16 * 4 + snug_self()->lane / 2 % 4; }
inline unsigned snug_col() { return snug_self()->lane / 8 % 2 * 4 + snug_self()->lane % 2 * 2; }
// snug_holder returns the lane that holds an element; columns 2n and 2n+1 share one.
inline unsigned snug_holder(unsigned row, unsigned col) { return row / 4 * 16 + col / 4 * 8 + row % 4 * 2 + col / 2 % 2; }

template <class T>
void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* src, ulong stride, ulong2 origin = ulong2(0, 0), bool transpose = false) {
    src += origin.y * stride + origin.x;
    for (unsigned e = 0; e < 2; e++) {
        unsigned row = snug_row(), col = snug_col() + e;
        m.element[e] = transpose ? src[col * stride + row] : src[row * stride + col];
    }
    char none = 0;
    snug_exchange(&none, 1); // a collective: all lanes come here
}

template <class A, class B>
void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<float, 8, 8>& c) {
    float mine[4] = {snug_float(a.element[0]), snug_float(a.element[1]), snug_float(b.element[0]), snug_float(b.element[1])};
    const char* slots = snug_exchange(mine, sizeof mine);
    auto number = [&](unsigned row, unsigned col, unsigned of) {
        float x;
        memcpy(&x, slots + snug_holder(row, col) * SNUG_SLOT + 4 * (of + col % 2), sizeof x);
        return x;
    };
    for (unsigned e = 0; e < 2; e++) {
        float sum = c.element[e];
        for (unsigned k = 0; k < 8; k++) sum = __builtin_fmaf(number(snug_row(), k, 0), number(k, snug_col() + e, 2), sum);
        d.element[e] = sum;
    }
}

} // namespace metal
