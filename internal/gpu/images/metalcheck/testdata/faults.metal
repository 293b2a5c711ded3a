// Each line that says "want" has the fault that its text names.
#include "metal.h"

struct FaultParams { u32 n, m; };
struct Shape {
    virtual float area(); // want: no virtual functions
};

DEVICE float first(float* p) { return p[0]; } // want: no address space is written in float * p
DEVICE void add(PRIVATE float& to, const Acc4& x); // want: unknown type name 'Acc4'
DEVICE float of_group(GROUP const float* p) { return p[0]; }
DEVICE float of_thread(PRIVATE const float* p) { return p[0]; }
DEVICE float half_of(float x) { return x * 0.5; } // want: no double
DEVICE void copy(GLOBAL f16* to, GLOBAL const f16* from) { *to = *from; }
DEVICE u32 count(u32 n) { return n == 0 ? 0 : count(n - 1); } // want: no recursion
DEVICE u16 upper(float x) { return as_type<u16>(bfloat(x)); } // want: bfloat
#if __METAL_VERSION__ >= 310
DEVICE u16 also_upper(float x) { return as_type<u16>(bfloat(x)); }
#endif
DEVICE void scratch() {
    SHARED(float, lost, 32); // want: declared in a kernel only
    lost[0] = 1;
}
DEVICE u64 product(u32 a, u32 b) {
    long long x = a; // want: no long long
    return (u64)x * b;
}
DEVICE u32 twice_of(u32 half) { return half * 2; } // want: error
DEVICE float nearest(float x) { return __builtin_rintf(x); } // want: name of clang's

// Right: a template that copies, called by templates that come after its body.
template <class T> struct Pair { T x[2]; };
template <class T> DEVICE Pair<T> load(GLOBAL const T* x) { return *(GLOBAL const Pair<T>*)x; }
template <class T> DEVICE float one(GLOBAL const T* x) { return widen(load(x).x[0]); }
template <class T> DEVICE float two(GLOBAL const T* x) { return widen(load(x).x[1]) + one(x); }
template <class T> DEVICE float wrong(GROUP const T* x) { return widen(load(x).x[1]); } // want: no matching function for call to 'load'
KERNEL(right, 64, OPERAND(float, out, 0), OPERAND(const float, in, 1)) { out[0] = one(in); }
KERNEL(also_right, 64, OPERAND(float, out, 0), OPERAND(const float, in, 1)) {
    SHARED(float, s, 64);
    s[0] = two(in);
    out[0] = wrong(s);
}

KERNEL(faults, 64, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(FaultParams, p)) {
    Thread t = THREAD;
    SHARED(float, s, 64);
    SHARED(Wide16, wide, 4);
    FaultParams mine = p;
    float x[2] = {in[0], in[1]};
    s[t.local] = of_thread(x);
    out[0] = of_group(x); // want: no matching function for call to 'of_group'
    out[1] = of_thread(s); // want: no matching function for call to 'of_thread'
    out[2] = of_group(out); // want: no matching function for call to 'of_group'
    GLOBAL float* q = s; // want: cannot initialize
    in[0] = 1; // want: read-only
    p.n = 1; // want: const
    auto twice = [](float y) { return 2 * y; }; // want: no lambda
    if constexpr (sizeof(x) == 8) out[3] = twice(q[mine.n]); // want: C++17
    Wide16 w = wide[0];
    wide[1] = w;
    first((float*)x); // want: no address space is written in float *
}
