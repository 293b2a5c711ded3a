// Matrix units in Metal: 8×8 simdgroup matrices, of Apple7 and later; see
// matrix.h. A lane holds two neighbours of a row of each: MATRIX_ROW says which.
#pragma once

#define HAS_F16_UNITS
#if __METAL_VERSION__ >= 310
#define HAS_BF16_UNITS // Metal has no bfloat before 3.1
#endif

#define ROW_LANES_0 1
#define ROW_LANES_1 8
#include "matrix.h"

// Native is the language's own type for an element type.
template <class T> struct Native;
template <> struct Native<f16> { typedef half type; };
#if __METAL_VERSION__ >= 310
template <> struct Native<bf16> { typedef bfloat type; };
#endif

template <class T> struct FragA { simdgroup_matrix<typename Native<T>::type, 8, 8> m[2][2]; }; // by rows, by columns
template <class T> struct FragB { simdgroup_matrix<typename Native<T>::type, 8, 8> m[2]; };    // by rows

DEVICE u32 acc_row(u32 lane, u32 lower) { return lane / 16 * 4 + lane / 2 % 4 + 8 * lower; }
DEVICE u32 acc_col(u32 lane) { return lane / 8 % 2 * 4 + lane % 2 * 2; }

template <class T> DEVICE void load_a(PRIVATE FragA<T>& a, GROUP const T* p, u32 stride) {
    GROUP const typename Native<T>::type* x = (GROUP const typename Native<T>::type*)p;
    for (u32 i = 0; i < 2; i++)
        for (u32 k = 0; k < 2; k++) simdgroup_load(a.m[i][k], x + 8 * i * stride + 8 * k, stride);
}
template <class T> DEVICE void load_a_transposed(PRIVATE FragA<T>& a, GROUP const T* p, u32 stride) {
    GROUP const typename Native<T>::type* x = (GROUP const typename Native<T>::type*)p;
    for (u32 i = 0; i < 2; i++)
        for (u32 k = 0; k < 2; k++) simdgroup_load(a.m[i][k], x + 8 * k * stride + 8 * i, stride, ulong2(0, 0), true);
}
template <class T> DEVICE void load_b(PRIVATE FragB<T>* b, GROUP const T* p, u32 stride) {
    GROUP const typename Native<T>::type* x = (GROUP const typename Native<T>::type*)p;
    for (u32 j = 0; j < 2; j++)
        for (u32 k = 0; k < 2; k++) simdgroup_load(b[j].m[k], x + 8 * k * stride + 8 * j, stride);
}
template <class T> DEVICE void load_b_transposed(PRIVATE FragB<T>* b, GROUP const T* p, u32 stride) {
    GROUP const typename Native<T>::type* x = (GROUP const typename Native<T>::type*)p;
    for (u32 j = 0; j < 2; j++)
        for (u32 k = 0; k < 2; k++) simdgroup_load(b[j].m[k], x + 8 * j * stride + 8 * k, stride, ulong2(0, 0), true);
}
template <class T> DEVICE void multiply(PRIVATE Acc& c, PRIVATE const FragA<T>& a, PRIVATE const FragB<T>& b) {
    for (u32 i = 0; i < 2; i++) {
        simdgroup_matrix<float, 8, 8> sum;
        sum.thread_elements()[0] = c.x[2 * i];
        sum.thread_elements()[1] = c.x[2 * i + 1];
        for (u32 k = 0; k < 2; k++) simdgroup_multiply_accumulate(sum, a.m[i][k], b.m[k], sum);
        c.x[2 * i] = sum.thread_elements()[0];
        c.x[2 * i + 1] = sum.thread_elements()[1];
    }
}
template <class T> DEVICE void acc_to_a(PRIVATE FragA<T>& a, PRIVATE const Acc& left, PRIVATE const Acc& right) {
    for (u32 i = 0; i < 2; i++)
        for (u32 e = 0; e < 2; e++) {
            a.m[i][0].thread_elements()[e] = as_type<typename Native<T>::type>(narrow<T>(left.x[2 * i + e]).bits);
            a.m[i][1].thread_elements()[e] = as_type<typename Native<T>::type>(narrow<T>(right.x[2 * i + e]).bits);
        }
}

DEVICE void copy_async(GROUP void* dst, GLOBAL const void* src, bool there) {
    GROUP Wide16* to = (GROUP Wide16*)dst;
    if (there) *to = *(GLOBAL const Wide16*)src;
    else *to = Wide16{{0, 0, 0, 0}};
}
DEVICE void copy_async_commit() {}
template <int N> DEVICE void copy_async_wait() {}
