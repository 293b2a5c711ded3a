// Activations of one element, by forms with numbers: gpu_activate.go says which an activation has.
#pragma once
#include "tanh.h"

enum { FORM_RAMP, FORM_RAMP_MUL, FORM_LEAKY, FORM_SIGMOID, FORM_TANH, FORM_SILU };

struct ActivateParams {
    u64 n;
    u32 form, wide;
    f32 floor, shift, high, scale; // of the forms; FORM_LEAKY has its slope in scale
};

// ramp_of is min(max(x + shift, 0), high)·scale; NaN stays.
DEVICE float ramp_of(float x, ActivateParams p) { return at_most(at_least(x + p.shift, 0.0f), p.high) * p.scale; }

template <int form> DEVICE float activate_of(float x, ActivateParams p) {
    if (form == FORM_RAMP) return ramp_of(x, p);
    if (form == FORM_RAMP_MUL) return at_least(x, p.floor) * ramp_of(x, p);
    if (form == FORM_LEAKY) return x > 0.0f ? x : p.scale * x;
    if (form == FORM_SIGMOID) return logistic_of(at_least(x, -SILU_FLAT) * LOG2E).s;
    if (form == FORM_TANH) return tanh_of(x);
    return SiLUGate::of(x).y;
}

template <class T, int form> struct ActivateOp {
    GLOBAL T* out;
    GLOBAL const T* x;
    ActivateParams p;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> y = load_pack<n>(x + i);
        UNROLL for (int k = 0; k < n; k++) y.x[k] = narrow<T>(activate_of<form>(widen(y.x[k]), p));
        store_pack<n>(out + i, y);
    }
};

template <class T, int form> DEVICE void activate_as(Thread t, GLOBAL T* out, GLOBAL const T* x, ActivateParams p) {
    ActivateOp<T, form> op = {out, x, p};
    each<16 / sizeof(T)>(t, p.n, p.wide, op);
}

template <class T> DEVICE void activate(Thread t, GLOBAL T* out, GLOBAL const T* x, ActivateParams p) {
    switch (p.form) {
    case FORM_RAMP: activate_as<T, FORM_RAMP>(t, out, x, p); break;
    case FORM_RAMP_MUL: activate_as<T, FORM_RAMP_MUL>(t, out, x, p); break;
    case FORM_LEAKY: activate_as<T, FORM_LEAKY>(t, out, x, p); break;
    case FORM_SIGMOID: activate_as<T, FORM_SIGMOID>(t, out, x, p); break;
    case FORM_TANH: activate_as<T, FORM_TANH>(t, out, x, p); break;
    default: activate_as<T, FORM_SILU>(t, out, x, p);
    }
}

#define ACTIVATE(T)                                                                                             \
    KERNEL(fused_activate_##T, 256, OPERAND(T, out, 0), OPERAND(const T, x, 1), PARAMS(ActivateParams, p)) {    \
        activate<T>(THREAD, out, x, p);                                                                         \
    }
FOR_FLOATS(ACTIVATE)

// ---- the gradients: slopes that are a·x + b between two kinks, slopes of an output y, and SiLU's

enum { SLOPES_PIECES, SLOPES_OUTPUT, SLOPES_SILU };

struct SlopesParams {
    u64 n;
    u32 form, wide;
    f32 low, last, below, a, b, above;
};

template <int form> DEVICE float slope_of(float x, SlopesParams p) {
    if (form == SLOPES_OUTPUT) return (p.b - x) * x + p.a;
    if (form == SLOPES_SILU) return SiLUGate::of(x).slope;
    float s = p.a * x + p.b;
    s = x <= p.low ? p.below : s;
    return x > p.last ? p.above : s;
}

template <class T, int form> struct SlopesOp {
    GLOBAL T* dx;
    GLOBAL const T* dy;
    GLOBAL const T* kept;
    SlopesParams p;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> d = load_pack<n>(dy + i), x = load_pack<n>(kept + i);
        UNROLL for (int k = 0; k < n; k++) d.x[k] = narrow<T>(widen(d.x[k]) * slope_of<form>(widen(x.x[k]), p));
        store_pack<n>(dx + i, d);
    }
};

template <class T, int form>
DEVICE void slopes_as(Thread t, GLOBAL T* dx, GLOBAL const T* dy, GLOBAL const T* kept, SlopesParams p) {
    SlopesOp<T, form> op = {dx, dy, kept, p};
    each<16 / sizeof(T)>(t, p.n, p.wide, op);
}

template <class T> DEVICE void slopes(Thread t, GLOBAL T* dx, GLOBAL const T* dy, GLOBAL const T* kept, SlopesParams p) {
    switch (p.form) {
    case SLOPES_PIECES: slopes_as<T, SLOPES_PIECES>(t, dx, dy, kept, p); break;
    case SLOPES_OUTPUT: slopes_as<T, SLOPES_OUTPUT>(t, dx, dy, kept, p); break;
    default: slopes_as<T, SLOPES_SILU>(t, dx, dy, kept, p);
    }
}

#define ACTIVATE_BACKWARD(T)                                                                                    \
    KERNEL(fused_activate_backward_##T, 256, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const T, kept, 2), \
           PARAMS(SlopesParams, p)) {                                                                           \
        slopes<T>(THREAD, dx, dy, kept, p);                                                                     \
    }
FOR_FLOATS(ACTIVATE_BACKWARD)
