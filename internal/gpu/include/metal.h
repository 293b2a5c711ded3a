// The kernel dialect in the Metal shading language; README.md in this folder
// describes it.
#pragma once
#define SNUG_METAL 1

#if defined(SNUG_EMU)
#include "emu_metal.h"
#else
#include <metal_stdlib>
#define SNUG_REGISTER(name, threads, ...)
#endif
using namespace metal;
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)

typedef uchar u8;
typedef ushort u16;
typedef uint u32;
typedef int i32;
typedef ulong u64;
typedef long i64;
typedef float f32;

#define DEVICE static inline
#define DEVICE_MEMBER inline
#define GLOBAL device
#define GROUP threadgroup
#define PRIVATE thread
#define TABLE constant

#if !defined(SHARED)
#define SHARED(T, name, n) threadgroup T name[n]
#endif
#define UNROLL _Pragma("unroll")
#define UNROLL_2 _Pragma("unroll 2")
#define UNROLL_1 _Pragma("unroll 1")

#define OPERAND(T, name, index) device T* name [[buffer(index)]]
#define PARAMS(P, name) constant P& name [[buffer(30)]]
// The driver launches a large grid in pieces. SnugPiece says where one begins, and how large the
// whole grid is, in blocks.
struct SnugPiece {
    u32 first_x, first_y, first_z;
    u32 blocks_x, blocks_y, blocks_z;
};
#define SNUG_POSITION                                    \
    uint3 snug_local [[thread_position_in_threadgroup]], \
    uint3 snug_threads [[threads_per_threadgroup]],      \
    uint3 snug_block [[threadgroup_position_in_grid]],   \
    constant SnugPiece& snug_piece [[buffer(29)]]
#define KERNEL(name, threads, ...)                                \
    SNUG_REGISTER(name, threads, __VA_ARGS__, SNUG_POSITION)      \
    [[kernel, max_total_threads_per_threadgroup(threads)]] \
    void name(__VA_ARGS__, SNUG_POSITION)

#define WARP 32

struct Thread {
    u32 local;
    u32 threads;
    u32 block, block_y, block_z;
    u32 blocks, blocks_y, blocks_z;
};

#define THREAD                                                                \
    Thread { snug_local.x, snug_threads.x, snug_piece.first_x + snug_block.x,                      \
             snug_piece.first_y + snug_block.y, snug_piece.first_z + snug_block.z,                 \
             snug_piece.blocks_x, snug_piece.blocks_y, snug_piece.blocks_z }

DEVICE void sync_threads() { threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device); }
DEVICE void sync_warp() { simdgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device); }
template <class T> DEVICE T shuffle(T x, u32 lane) { return simd_shuffle(x, (ushort)lane); }
template <class T> DEVICE T shuffle_xor(T x, u32 mask) { return simd_shuffle_xor(x, (ushort)mask); }
DEVICE bool any_of_warp(bool x) { return simd_any(x); }

DEVICE void atomic_min_u32(device u32* p, u32 x) {
    atomic_fetch_min_explicit((device atomic_uint*)p, x, memory_order_relaxed);
}
DEVICE void atomic_add_u32(device u32* p, u32 x) {
    atomic_fetch_add_explicit((device atomic_uint*)p, x, memory_order_relaxed);
}

DEVICE u32 float_bits(float x) { return as_type<u32>(x); }
DEVICE float bits_float(u32 x) { return as_type<float>(x); }
DEVICE float fused_mul_add(float a, float b, float c) { return fma(a, b, c); }
DEVICE float square_root(float x) { return precise::sqrt(x); }
DEVICE float minimum(float a, float b) { return a < b ? a : b; }
DEVICE float maximum(float a, float b) { return a > b ? a : b; }
DEVICE float magnitude(float x) { return fabs(x); }
DEVICE u32 mul_high(u32 a, u32 b) { return mulhi(a, b); }
template <class T> DEVICE T least(T a, T b) { return a < b ? a : b; }
template <class T> DEVICE T greatest(T a, T b) { return a > b ? a : b; }

struct alignas(16) Wide16 { u32 word[4]; };

#include "snug.h"
