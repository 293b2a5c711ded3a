// Resizing: a thread computes an element from those of the other side, with weights that the host computed.
#pragma once

// ResizeDim says where the weights of a dimension lie in the table: for each of out elements of y its first element of x and the
// number of them, and then taps weights for each. A dimension that a shape lacks has no taps, and the weight 1.
struct ResizeDim { u32 in, out, taps, at; };

struct ResizeParams {
    u64 items;
    ResizeDim z, y, x;
    u32 channels, last;
    f32 alpha, beta;
};

// ResizeSpan is n elements of a dimension from first on, and where the weight of the first lies in the table.
struct ResizeSpan { u32 first, n, weight; };

// span_of returns the elements of x of which element o of y is a weighted sum.
DEVICE ResizeSpan span_of(GLOBAL const f32* table, ResizeDim d, u32 o) {
    if (d.taps == 0) return ResizeSpan{0, 1, 0};
    u32 at = d.at + 2 * o;
    return ResizeSpan{float_bits(table[at]), float_bits(table[at + 1]), d.at + 2 * d.out + o * d.taps};
}

DEVICE float resize_weight(GLOBAL const f32* table, ResizeDim d, ResizeSpan s, u32 i) { return d.taps == 0 ? 1.0f : table[s.weight + i - s.first]; }

// outputs_of returns the elements of y that element i of x is a part of.
DEVICE ResizeSpan outputs_of(GLOBAL const f32* table, ResizeDim d, u32 i) {
    if (d.taps == 0) return ResizeSpan{0, 1, 0};
    u32 lo = 0, hi = d.out; // the first whose span ends behind i
    while (lo < hi) {
        u32 o = (lo + hi) / 2;
        ResizeSpan s = span_of(table, d, o);
        if (s.first + s.n > i) hi = o;
        else lo = o + 1;
    }
    u32 first = lo;
    hi = d.out; // the first whose span begins behind i
    while (lo < hi) {
        u32 o = (lo + hi) / 2;
        if (span_of(table, d, o).first > i) hi = o;
        else lo = o + 1;
    }
    return ResizeSpan{first, lo - first, 0};
}

DEVICE u32 resize_at(Place at, u32 position, ResizeParams p) { return p.last ? position * p.channels + at.channel : position; }

template <class T> DEVICE float resized(GLOBAL const T* x, GLOBAL const f32* table, Place at, ResizeParams p) {
    ResizeSpan z = span_of(table, p.z, at.z), y = span_of(table, p.y, at.y), across = span_of(table, p.x, at.x);
    u32 step = p.last ? p.channels : 1;
    float sum = 0;
    UNROLL_1 for (u32 kz = z.first; kz < z.first + z.n; kz++) {
        float a = resize_weight(table, p.z, z, kz);
        UNROLL_1 for (u32 ky = y.first; ky < y.first + y.n; ky++) {
            float row = 0;
            u32 from = resize_at(at, position_of(at.plane, kz, ky, across.first, p.z.in, p.y.in, p.x.in), p);
            UNROLL_1 for (u32 kx = across.first; kx < across.first + across.n; kx++, from += step)
                row = fused_mul_add(resize_weight(table, p.x, across, kx), widen(x[from]), row);
            sum = fused_mul_add(a * resize_weight(table, p.y, y, ky), row, sum);
        }
    }
    return sum;
}

template <class T> DEVICE float resize_gradient(GLOBAL const T* dy, GLOBAL const f32* table, Place at, ResizeParams p) {
    ResizeSpan z = outputs_of(table, p.z, at.z), y = outputs_of(table, p.y, at.y), across = outputs_of(table, p.x, at.x);
    u32 step = p.last ? p.channels : 1;
    float sum = 0;
    UNROLL_1 for (u32 oz = z.first; oz < z.first + z.n; oz++) {
        float a = resize_weight(table, p.z, span_of(table, p.z, oz), at.z);
        UNROLL_1 for (u32 oy = y.first; oy < y.first + y.n; oy++) {
            float row = 0;
            u32 from = resize_at(at, position_of(at.plane, oz, oy, across.first, p.z.out, p.y.out, p.x.out), p);
            UNROLL_2 for (u32 ox = across.first; ox < across.first + across.n; ox++, from += step)
                row = fused_mul_add(resize_weight(table, p.x, span_of(table, p.x, ox), at.x), widen(dy[from]), row);
            sum = fused_mul_add(a * resize_weight(table, p.y, span_of(table, p.y, oy), at.y), row, sum);
        }
    }
    return sum;
}

template <class T, bool backward> DEVICE void resize(Thread t, GLOBAL T* to, GLOBAL const T* from, GLOBAL const f32* table, ResizeParams p) {
    UNROLL_1 for (u32 i = t.block * t.threads + t.local; i < p.items; i += t.blocks * t.threads) {
        if (backward) {
            Place at = place_of(i, p.z.in, p.y.in, p.x.in, p.channels, p.last);
            enter(to + i, resize_gradient(from, table, at, p), p.alpha, p.beta);
        } else {
            Place at = place_of(i, p.z.out, p.y.out, p.x.out, p.channels, p.last);
            to[i] = narrow<T>(resized(from, table, at, p));
        }
    }
}

#define RESIZE(T)                                                                                                      \
    KERNEL(conv_resize_##T, 256, OPERAND(T, y, 0), OPERAND(const T, x, 1), OPERAND(const f32, table, 2),               \
           PARAMS(ResizeParams, p)) {                                                                                  \
        resize<T, false>(THREAD, y, x, table, p);                                                                      \
    }                                                                                                                  \
    KERNEL(conv_resize_backward_##T, 256, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const f32, table, 2),    \
           PARAMS(ResizeParams, p)) {                                                                                  \
        resize<T, true>(THREAD, dx, dy, table, p);                                                                     \
    }
FOR_FLOATS(RESIZE)
