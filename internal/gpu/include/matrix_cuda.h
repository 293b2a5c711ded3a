// Matrix units in CUDA: mma.sync and ldmatrix, of sm_80 and later; see matrix.h.
// The names that start with ptx_ are one instruction each. The emulator has them as the PTX
// manual defines them. HIP has no units: AMD's have other fragments.
#pragma once
#if !defined(SNUG_WAVE)

#define HAS_F16_UNITS
#define HAS_BF16_UNITS

// The lanes that share a row of an accumulator differ in these bits.
#define ROW_LANES_0 1
#define ROW_LANES_1 2
#include "matrix.h"

template <class T> struct FragA { u32 x[4]; };
template <class T> struct FragB { u32 x[2]; };

DEVICE u32 acc_row(u32 lane, u32 lower) { return lane / 4 + 8 * lower; }
DEVICE u32 acc_col(u32 lane) { return lane % 4 * 2; }

template <class T> struct IsBF16 { enum { value = 0 }; };
template <> struct IsBF16<bf16> { enum { value = 1 }; };

#if defined(SNUG_EMU)
#include "emu_ptx.h"
#elif defined(__CUDA_ARCH__)

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE void ptx_ldmatrix(u32* x, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ptx_ldmatrix_trans(u32* x, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ptx_mma_bf16(float* c, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void ptx_mma_f16(float* c, const u32* a, const u32* b) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void ptx_cp_async(void* dst, const void* src, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(dst)), "l"(src), "r"(bytes) : "memory");
}
DEVICE void ptx_cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> DEVICE void ptx_cp_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// pair in one instruction; NaNs lose their payload.
template <> __device__ inline u32 pair<bf16>(float x, float y) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}
template <> __device__ inline u32 pair<f16>(float x, float y) {
    u32 both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}

#endif

template <class T> DEVICE void load_a(FragA<T>& a, const T* p, u32 stride) {
    u32 lane = threadIdx.x % 32;
    ptx_ldmatrix(a.x, p + lane % 16 * stride + lane / 16 * 8);
}
template <class T> DEVICE void load_a_transposed(FragA<T>& a, const T* p, u32 stride) {
    u32 lane = threadIdx.x % 32;
    ptx_ldmatrix_trans(a.x, p + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
}
template <class T> DEVICE void load_b(FragB<T>* b, const T* p, u32 stride) {
    u32 lane = threadIdx.x % 32, x[4];
    ptx_ldmatrix_trans(x, p + lane % 16 * stride + lane / 16 * 8);
    b[0].x[0] = x[0], b[0].x[1] = x[1], b[1].x[0] = x[2], b[1].x[1] = x[3];
}
template <class T> DEVICE void load_b_transposed(FragB<T>* b, const T* p, u32 stride) {
    u32 lane = threadIdx.x % 32, x[4];
    ptx_ldmatrix(x, p + (lane % 8 + lane / 16 * 8) * stride + lane / 8 % 2 * 8);
    b[0].x[0] = x[0], b[0].x[1] = x[1], b[1].x[0] = x[2], b[1].x[1] = x[3];
}
template <class T> DEVICE void multiply(Acc& c, const FragA<T>& a, const FragB<T>& b) {
    if (IsBF16<T>::value) ptx_mma_bf16(c.x, a.x, b.x);
    else ptx_mma_f16(c.x, a.x, b.x);
}

DEVICE void copy_async(void* dst, const void* src, bool there) { ptx_cp_async(dst, src, there ? 16 : 0); }
DEVICE void copy_async_commit() { ptx_cp_async_commit(); }
template <int N> DEVICE void copy_async_wait() { ptx_cp_async_wait<N>(); }

template <class T> DEVICE void acc_to_a(FragA<T>& a, const Acc& left, const Acc& right) {
    a.x[0] = pair<T>(left.x[0], left.x[1]);
    a.x[1] = pair<T>(left.x[2], left.x[3]);
    a.x[2] = pair<T>(right.x[0], right.x[1]);
    a.x[3] = pair<T>(right.x[2], right.x[3]);
}

#endif
