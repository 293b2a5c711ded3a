// Loops through vectors, 16 bytes of an operand at a time.
#pragma once

// Pack is n neighbours that move in one access, at an address that is a
// multiple of its size.
template <class T, int n> struct alignas(sizeof(T) * n) Pack { T x[n]; };

// FLIGHT is how many packs of an operand a thread loads before it uses the first.
enum { FLIGHT = 4 };

template <int n, class T> DEVICE Pack<T, n> load_pack(GLOBAL const T* p) { return *(GLOBAL const Pack<T, n>*)p; }
template <int n, class T> DEVICE void store_pack(GLOBAL T* p, Pack<T, n> x) { *(GLOBAL Pack<T, n>*)p = x; }

// Elements is what a loop through n elements is told. wide says that all operands
// start at multiples of 16 bytes.
struct Elements {
    u64 n;
    u32 wide, unused;
};

// each calls f.at<per>(i) for whole packs and f.at<1>(i) for what remains.
template <int per, class F> DEVICE void each(Thread t, u64 n, u32 wide, PRIVATE const F& f) {
    u64 begin = (u64)t.block * t.threads + t.local, step = (u64)t.blocks * t.threads, packs = wide ? n / per : 0;
    UNROLL_2 for (u64 i = begin; i < packs; i += step) f.template at<per>(i * per);
    UNROLL_1 for (u64 i = packs * per + begin; i < n; i += step) f.template at<1>(i);
}
