// Elementwise layers.
#pragma once

// ---- add: out = a + b

template <class T> struct AddOp {
    GLOBAL T* out;
    GLOBAL const T* a;
    GLOBAL const T* b;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> x = load_pack<n>(a + i), y = load_pack<n>(b + i);
        UNROLL for (int k = 0; k < n; k++) x.x[k] = narrow<T>(widen(x.x[k]) + widen(y.x[k]));
        store_pack<n>(out + i, x);
    }
};

#define ADD(T)                                                                                                       \
    KERNEL(fused_add_##T, 256, OPERAND(T, out, 0), OPERAND(const T, a, 1), OPERAND(const T, b, 2),                   \
           PARAMS(Elements, p)) {                                                                                    \
        AddOp<T> op = {out, a, b};                                                                                   \
        each<16 / sizeof(T)>(THREAD, p.n, p.wide, op);                                                               \
    }
FOR_FLOATS(ADD)

// ---- GELU in the tanh approximation: x·σ(2u), 2u = x(GELU1 + GELU3·x²), see
// internal/rowwise/activation.go

#define GELU1 1.5957691216057308f
#define GELU3_3 0.21406444881780073f // 3·GELU3
#define GELU1_LOG2E 2.302208198144325f
#define GELU3_LOG2E 0.1029432395800235f
#define GELU_FLAT 16.0f

DEVICE Logistic gelu_gate(float x) { return logistic_of(x * fused_mul_add(GELU3_LOG2E, x * x, GELU1_LOG2E)); }

// above and below keep NaN.
DEVICE float at_least(float x, float low) { return x < low ? low : x; }
DEVICE float at_most(float x, float high) { return x > high ? high : x; }

DEVICE float gelu_of(float x) {
    x = at_least(x, -GELU_FLAT);
    return x * gelu_gate(at_most(x, GELU_FLAT)).s;
}

DEVICE float gelu_slope(float x) {
    x = at_most(at_least(x, -GELU_FLAT), GELU_FLAT);
    Logistic g = gelu_gate(x);
    return fused_mul_add(x * g.slope, fused_mul_add(GELU3_3, x * x, GELU1), g.s);
}

// ---- GELU itself: x·Φ(x), Φ(-a) = e^(-a²/2)·q(u), u = 1 - 1/(1 + 0.4a), see
// internal/rowwise/activation.go

#define NORMAL_SCALE 0.4f
#define NORMAL_EXPONENT -0.7213475204444817f // -½·log2 e
#define NORMAL_PEAK 0.3989422804014327f      // 1/√(2π)

struct Normal { float s, e; }; // Φ(x) and e^(-x²/2)

DEVICE Normal normal_of(float x) {
    float e = exp2_of(x * x * NORMAL_EXPONENT);
    float u = 1.0f - 1.0f / (1.0f + NORMAL_SCALE * magnitude(x));
    float q = fused_mul_add(u, 0.0235113259f, 0.0110310866f);
    q = fused_mul_add(u, q, -0.0492897332f);
    q = fused_mul_add(u, q, -0.100837998f);
    q = fused_mul_add(u, q, 0.0496571064f);
    q = fused_mul_add(u, q, 0.565155149f);
    q = fused_mul_add(u, q, -0.997355938f);
    q = e * fused_mul_add(u, q, 0.5f);
    return Normal{x > 0.0f ? 1.0f - q : q, e};
}

DEVICE float gelu_erf_of(float x) {
    x = at_least(x, -GELU_FLAT);
    return x * normal_of(at_most(x, GELU_FLAT)).s;
}

DEVICE float gelu_erf_slope(float x) {
    x = at_most(at_least(x, -GELU_FLAT), GELU_FLAT);
    Normal g = normal_of(x);
    return fused_mul_add(x * g.e, NORMAL_PEAK, g.s);
}

// ---- what becomes of x + bias

struct Identity {
    static DEVICE_MEMBER float of(float x) { return x; }
};
struct GELUTanh {
    static DEVICE_MEMBER float of(float x) { return gelu_of(x); }
    static DEVICE_MEMBER float slope(float x) { return gelu_slope(x); }
};
struct GELUErf {
    static DEVICE_MEMBER float of(float x) { return gelu_erf_of(x); }
    static DEVICE_MEMBER float slope(float x) { return gelu_erf_slope(x); }
};

struct BiasParams {
    u64 n;
    u32 cols, wide; // wide: also rows start at multiples of 16 bytes
};

template <class T, class F> struct BiasOp {
    GLOBAL T* out;
    GLOBAL const T* x;
    GLOBAL const T* bias;
    u32 cols;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> y = load_pack<n>(x + i), b = load_pack<n>(bias + i % cols);
        UNROLL for (int k = 0; k < n; k++) y.x[k] = narrow<T>(F::of(widen(y.x[k]) + widen(b.x[k])));
        store_pack<n>(out + i, y);
    }
};

#define BIAS_KERNEL(NAME, F, T)                                                                                   \
    KERNEL(fused_bias_##NAME##_##T, 256, OPERAND(T, out, 0), OPERAND(const T, x, 1), OPERAND(const T, bias, 2),   \
           PARAMS(BiasParams, p)) {                                                                               \
        BiasOp<T, F> op = {out, x, bias, p.cols};                                                                 \
        each<16 / sizeof(T)>(THREAD, p.n, p.wide, op);                                                            \
    }
#define BIAS_ADD(T) BIAS_KERNEL(add, Identity, T)
#define BIAS_GELU(T) BIAS_KERNEL(gelu, GELUTanh, T)
#define BIAS_GELU_ERF(T) BIAS_KERNEL(gelu_erf, GELUErf, T)
FOR_FLOATS(BIAS_ADD)
FOR_FLOATS(BIAS_GELU)
FOR_FLOATS(BIAS_GELU_ERF)

// ---- SwiGLU: silu(gate)·up, silu(x) = x·σ(x); GeGLU: gelu(gate)·up

#define LOG2E 1.4426950408889634f
#define SILU_FLAT 128.0f

struct Gate { float y, slope; }; // of an activation

struct SiLUGate {
    static DEVICE_MEMBER Gate of(float x) {
        x = at_least(x, -SILU_FLAT);
        Logistic l = logistic_of(x * LOG2E);
        return Gate{x * l.s, fused_mul_add(at_most(x, SILU_FLAT), l.slope, l.s)};
    }
};
struct GELUGate {
    static DEVICE_MEMBER Gate of(float x) {
        x = at_least(x, -GELU_FLAT);
        float z = at_most(x, GELU_FLAT);
        Logistic g = gelu_gate(z);
        return Gate{x * g.s, fused_mul_add(z * g.slope, fused_mul_add(GELU3_3, z * z, GELU1), g.s)};
    }
};

template <class T, class F> struct GatedOp {
    GLOBAL T* out;
    GLOBAL const T* gate;
    GLOBAL const T* up;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> g = load_pack<n>(gate + i), u = load_pack<n>(up + i);
        UNROLL for (int k = 0; k < n; k++) g.x[k] = narrow<T>(F::of(widen(g.x[k])).y * widen(u.x[k]));
        store_pack<n>(out + i, g);
    }
};

template <class T, class F> struct GatedBackwardOp {
    GLOBAL T* dgate;
    GLOBAL T* dup;
    GLOBAL const T* dy;
    GLOBAL const T* gate;
    GLOBAL const T* up;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> d = load_pack<n>(dy + i), g = load_pack<n>(gate + i), u = load_pack<n>(up + i);
        UNROLL for (int k = 0; k < n; k++) {
            Gate s = F::of(widen(g.x[k]));
            float x = widen(d.x[k]);
            g.x[k] = narrow<T>(x * widen(u.x[k]) * s.slope);
            u.x[k] = narrow<T>(x * s.y);
        }
        store_pack<n>(dgate + i, g);
        store_pack<n>(dup + i, u);
    }
};

#define GATED(NAME, F, T)                                                                                            \
    KERNEL(fused_##NAME##_##T, 256, OPERAND(T, out, 0), OPERAND(const T, gate, 1), OPERAND(const T, up, 2),          \
           PARAMS(Elements, p)) {                                                                                    \
        GatedOp<T, F> op = {out, gate, up};                                                                          \
        each<16 / sizeof(T)>(THREAD, p.n, p.wide, op);                                                               \
    }                                                                                                                \
    KERNEL(fused_##NAME##_backward_##T, 256, OPERAND(T, dgate, 0), OPERAND(T, dup, 1), OPERAND(const T, dy, 2),      \
           OPERAND(const T, gate, 3), OPERAND(const T, up, 4), PARAMS(Elements, p)) {                                \
        GatedBackwardOp<T, F> op = {dgate, dup, dy, gate, up};                                                       \
        each<16 / sizeof(T)>(THREAD, p.n, p.wide, op);                                                               \
    }
#define SWIGLU(T) GATED(swiglu, SiLUGate, T)
#define GEGLU(T) GATED(geglu, GELUGate, T)
FOR_FLOATS(SWIGLU)
FOR_FLOATS(GEGLU)

// ---- the gate of gpt-oss: (u + 1)·g·σ(alpha·g), g and u clamped; see internal/rowwise/activation.go

struct ClampedParams {
    u64 n;
    f32 alpha, limit;
    u32 wide, unused;
};

DEVICE Gate clamped_gate(float x, ClampedParams p) {
    float t = at_least(p.alpha * at_most(x, p.limit), -SILU_FLAT);
    Logistic l = logistic_of(t * LOG2E);
    return Gate{t * l.s / p.alpha, fused_mul_add(t, l.slope, l.s)}; // t is not +Inf
}

template <class T> struct ClampedOp {
    GLOBAL T* out;
    GLOBAL const T* gate;
    GLOBAL const T* up;
    ClampedParams p;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> g = load_pack<n>(gate + i), u = load_pack<n>(up + i);
        UNROLL for (int k = 0; k < n; k++) {
            float factor = at_most(at_least(widen(u.x[k]), -p.limit), p.limit) + 1.0f;
            g.x[k] = narrow<T>(clamped_gate(widen(g.x[k]), p).y * factor);
        }
        store_pack<n>(out + i, g);
    }
};

template <class T> struct ClampedBackwardOp {
    GLOBAL T* dgate;
    GLOBAL T* dup;
    GLOBAL const T* dy;
    GLOBAL const T* gate;
    GLOBAL const T* up;
    ClampedParams p;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> d = load_pack<n>(dy + i), g = load_pack<n>(gate + i), u = load_pack<n>(up + i);
        UNROLL for (int k = 0; k < n; k++) {
            float a = widen(g.x[k]), b = widen(u.x[k]), x = widen(d.x[k]);
            Gate s = clamped_gate(a, p);
            float factor = at_most(at_least(b, -p.limit), p.limit) + 1.0f;
            g.x[k] = narrow<T>(a >= p.limit ? 0.0f : x * factor * s.slope);
            u.x[k] = narrow<T>(b >= p.limit || b <= -p.limit ? 0.0f : x * s.y);
        }
        store_pack<n>(dgate + i, g);
        store_pack<n>(dup + i, u);
    }
};

// Functions take the parameters by value, as in Metal those of a kernel lie in constant memory.
template <class T>
DEVICE void clamped(Thread t, GLOBAL T* out, GLOBAL const T* gate, GLOBAL const T* up, ClampedParams p) {
    ClampedOp<T> op = {out, gate, up, p};
    each<16 / sizeof(T)>(t, p.n, p.wide, op);
}

template <class T>
DEVICE void clamped_backward(Thread t, GLOBAL T* dgate, GLOBAL T* dup, GLOBAL const T* dy, GLOBAL const T* gate,
                             GLOBAL const T* up, ClampedParams p) {
    ClampedBackwardOp<T> op = {dgate, dup, dy, gate, up, p};
    each<16 / sizeof(T)>(t, p.n, p.wide, op);
}

#define CLAMPED(T)                                                                                                   \
    KERNEL(fused_clamped_swiglu_##T, 256, OPERAND(T, out, 0), OPERAND(const T, gate, 1), OPERAND(const T, up, 2),    \
           PARAMS(ClampedParams, p)) {                                                                               \
        clamped<T>(THREAD, out, gate, up, p);                                                                        \
    }                                                                                                                \
    KERNEL(fused_clamped_swiglu_backward_##T, 256, OPERAND(T, dgate, 0), OPERAND(T, dup, 1), OPERAND(const T, dy, 2), \
           OPERAND(const T, gate, 3), OPERAND(const T, up, 4), PARAMS(ClampedParams, p)) {                           \
        clamped_backward<T>(THREAD, dgate, dup, dy, gate, up, p);                                                    \
    }
FOR_FLOATS(CLAMPED)

// ---- dropout: out[i] = scale·x[i], or 0 where word first + i of a stream is
// below the threshold. A thread takes the 4 elements of one Philox block at a
// time.

struct DropoutParams {
    u64 n, seed, tensor, first, threshold;
    f32 scale;
    u32 wide; // 4 elements of a block lie at multiples of their size
};

template <class T> DEVICE void dropout(Thread t, GLOBAL T* out, GLOBAL const T* x, DropoutParams p) {
    u32 skip = (u32)(p.first % 4); // words of the first block that come before
    u64 groups = (p.n + skip + 3) / 4, step = (u64)t.blocks * t.threads;
    UNROLL_1 for (u64 i = (u64)t.block * t.threads + t.local; i < groups; i += step) {
        Words4 r = philox(p.seed, p.tensor, p.first / 4 + i);
        i64 at = (i64)(4 * i) - skip;
        if (p.wide && at >= 0 && at + 4 <= (i64)p.n) {
            Pack<T, 4> y = load_pack<4>(x + at);
            UNROLL for (u32 k = 0; k < 4; k++) y.x[k] = narrow<T>(r.word[k] >= p.threshold ? p.scale * widen(y.x[k]) : 0.0f);
            store_pack<4>(out + at, y);
            continue;
        }
        UNROLL for (u32 k = 0; k < 4; k++) {
            i64 j = at + k;
            if (j >= 0 && j < (i64)p.n) out[j] = narrow<T>(r.word[k] >= p.threshold ? p.scale * widen(x[j]) : 0.0f);
        }
    }
}

#define DROPOUT(T)                                                                                             \
    KERNEL(fused_dropout_##T, 256, OPERAND(T, out, 0), OPERAND(const T, x, 1), PARAMS(DropoutParams, p)) {     \
        dropout<T>(THREAD, out, x, p);                                                                         \
    }
FOR_FLOATS(DROPOUT)
