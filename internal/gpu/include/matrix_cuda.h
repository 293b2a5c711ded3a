// Matrix units in CUDA: mma.sync and ldmatrix, of sm_80 and later; see matrix.h.
// The names that start with ptx_ are one instruction each. They have a portable
// twin, for HIP, and the emulator has them as the PTX manual defines them.
#pragma once

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

#if defined(__CUDA_ARCH__) && !defined(SNUG_EMU)
#define SNUG_PTX 1

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

#elif defined(SNUG_EMU) && !defined(SNUG_PORTABLE)
#define SNUG_PTX 1
#include "emu_ptx.h"
#endif

#if defined(SNUG_PTX)

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

#else // the portable twin, with the same layout of fragments

// element returns half i of packed numbers.
template <class T> DEVICE float element(u32 x, u32 i) { return widen(T{(u16)(x >> 16 * i)}); }

DEVICE u32 two(u16 low, u16 high) { return (u32)low | (u32)high << 16; }

// Register r of an A operand holds row lane/4 + 8·(r%2), columns from
// lane%4·2 + 8·(r/2) on; register r of a B operand rows from lane%4·2 + 8·r on,
// column lane/4.
template <class T> DEVICE void load_a(FragA<T>& a, const T* p, u32 stride) {
    u32 lane = threadIdx.x % 32;
    for (u32 r = 0; r < 4; r++) {
        const T* at = p + (lane / 4 + r % 2 * 8) * stride + lane % 4 * 2 + r / 2 * 8;
        a.x[r] = two(at[0].bits, at[1].bits);
    }
}
template <class T> DEVICE void load_a_transposed(FragA<T>& a, const T* p, u32 stride) {
    u32 lane = threadIdx.x % 32;
    for (u32 r = 0; r < 4; r++) {
        const T* at = p + (lane % 4 * 2 + r / 2 * 8) * stride + lane / 4 + r % 2 * 8;
        a.x[r] = two(at[0].bits, at[stride].bits);
    }
}
template <class T> DEVICE void load_b(FragB<T>* b, const T* p, u32 stride) {
    u32 lane = threadIdx.x % 32;
    for (u32 r = 0; r < 4; r++) {
        const T* at = p + (lane % 4 * 2 + r % 2 * 8) * stride + lane / 4 + r / 2 * 8;
        b[r / 2].x[r % 2] = two(at[0].bits, at[stride].bits);
    }
}
template <class T> DEVICE void load_b_transposed(FragB<T>* b, const T* p, u32 stride) {
    u32 lane = threadIdx.x % 32;
    for (u32 r = 0; r < 4; r++) {
        const T* at = p + (lane / 4 + r / 2 * 8) * stride + lane % 4 * 2 + r % 2 * 8;
        b[r / 2].x[r % 2] = two(at[0].bits, at[1].bits);
    }
}
template <class T> DEVICE void multiply(Acc& c, const FragA<T>& a, const FragB<T>& b) {
    u32 base = threadIdx.x % WARP / 32 * 32, lane = threadIdx.x % 32;
    for (u32 k = 0; k < 16; k++) { // a's columns and b's rows
        u32 from = k % 8 / 2, r = k / 8;
        u32 low = shuffle(a.x[2 * r], base + lane / 4 * 4 + from), high = shuffle(a.x[2 * r + 1], base + lane / 4 * 4 + from);
        u32 left = shuffle(b.x[r], base + lane % 4 * 8 + from), right = shuffle(b.x[r], base + lane % 4 * 8 + 4 + from);
        float rows[2] = {element<T>(low, k % 2), element<T>(high, k % 2)};
        float cols[2] = {element<T>(left, k % 2), element<T>(right, k % 2)};
        for (u32 e = 0; e < 4; e++) c.x[e] = fused_mul_add(rows[e / 2], cols[e % 2], c.x[e]);
    }
}

DEVICE void copy_async(void* dst, const void* src, bool there) {
    *(Wide16*)dst = there ? *(const Wide16*)src : Wide16{{0, 0, 0, 0}};
}
DEVICE void copy_async_commit() {}
template <int N> DEVICE void copy_async_wait() {}

#endif

template <class T> DEVICE void acc_to_a(FragA<T>& a, const Acc& left, const Acc& right) {
    a.x[0] = pair<T>(left.x[0], left.x[1]);
    a.x[1] = pair<T>(left.x[2], left.x[3]);
    a.x[2] = pair<T>(right.x[0], right.x[1]);
    a.x[3] = pair<T>(right.x[2], right.x[3]);
}
