// Poolings. A thread computes an element, or those that share a byte of the index.
#pragma once

// Windows are the windows of one dimension, see windows in pool.go.
struct Windows {
    u32 in, out, taps, stride, dilation, before, after, adaptive;
};

// PoolRange is a range of taps or of windows.
struct PoolRange { u32 lo, hi; };

// scaled returns (i·a + up)/b for i up to b; b times what is left of a/b is below 2^32, see gpu_pool.go.
DEVICE u32 scaled(u32 i, u32 a, u32 b, u32 up) { return i * (a / b) + (i * (a % b) + up) / b; }

DEVICE i32 window_start(Windows w, u32 o) {
    if (w.adaptive) return (i32)scaled(o, w.in, w.out, 0);
    return (i32)(o * w.stride) - (i32)w.before;
}

// window_taps returns which taps of a window lie in x.
DEVICE PoolRange window_taps(Windows w, u32 o, i32 start) {
    if (w.adaptive) return PoolRange{0, scaled(o + 1, w.in, w.out, w.out - 1) - (u32)start};
    u32 lo = start < 0 ? ((u32)-start + w.dilation - 1) / w.dilation : 0;
    u32 hi = ((u32)((i32)w.in - start) + w.dilation - 1) / w.dilation;
    return PoolRange{lo, greatest(lo, least(w.taps, hi))};
}

// window_divisor returns the elements by which a mean divides in this dimension.
DEVICE u32 window_divisor(Windows w, i32 start, PoolRange taps, u32 skip) {
    if (skip || w.adaptive) return taps.hi - taps.lo;
    return (u32)(least(start + (i32)w.taps, (i32)(w.in + w.after)) - start);
}

// windows_of returns the windows that may hold element i.
DEVICE PoolRange windows_of(Windows w, u32 i) {
    if (w.adaptive) return PoolRange{scaled(i, w.out, w.in, 0), scaled(i + 1, w.out, w.in, w.in - 1)};
    u32 at = i + w.before, extent = w.dilation * (w.taps - 1) + 1;
    u32 lo = at >= extent ? (at - extent) / w.stride + 1 : 0;
    return PoolRange{lo, least(at / w.stride + 1, w.out)};
}

struct PoolParams {
    u64 items, row_bytes; // bytes of a row of the index
    Windows z, y, x;
    u32 channels, last, lanes; // lanes: elements of a row of y, each of which has an index
    u32 bits, per;             // of the index for an element; elements that a thread computes
    u32 skip, indexed;
    f32 alpha, beta;
    u32 unused;
};

// pool_at returns the element at a position of a vector with images of another size.
DEVICE u32 pool_at(Place at, u32 position, PoolParams p) { return p.last ? position * p.channels + at.channel : position; }

struct Pooled {
    float value;
    u32 tap;
};

// pool_window returns the largest element of a window, and its tap, or the mean.
template <class T, bool max> DEVICE Pooled pool_window(GLOBAL const T* x, Place at, PoolParams p) {
    i32 startZ = window_start(p.z, at.z), startY = window_start(p.y, at.y), startX = window_start(p.x, at.x);
    PoolRange tapsZ = window_taps(p.z, at.z, startZ), tapsY = window_taps(p.y, at.y, startY), tapsX = window_taps(p.x, at.x, startX);
    Pooled best = {max ? bits_float(0xff800000u) : 0.0f, 0};
    bool any = false;
    u32 step = p.last ? p.x.dilation * p.channels : p.x.dilation;
    UNROLL_1 for (u32 kz = tapsZ.lo; kz < tapsZ.hi; kz++) {
        UNROLL_1 for (u32 ky = tapsY.lo; ky < tapsY.hi; ky++) {
            u32 z = (u32)(startZ + (i32)(kz * p.z.dilation)), y = (u32)(startY + (i32)(ky * p.y.dilation));
            u32 first = (u32)(startX + (i32)(tapsX.lo * p.x.dilation)), tap = (kz * p.y.taps + ky) * p.x.taps;
            u32 from = pool_at(at, position_of(at.plane, z, y, first, p.z.in, p.y.in, p.x.in), p);
            UNROLL_2 for (u32 kx = tapsX.lo; kx < tapsX.hi; kx++, from += step) {
                float v = widen(x[from]);
                if (!max) {
                    best.value += v;
                } else if (v > best.value || is_nan(v) || !any) {
                    best.value = v;
                    best.tap = tap + kx;
                    any = true;
                }
            }
        }
    }
    if (!max) {
        float n = (float)window_divisor(p.z, startZ, tapsZ, p.skip) * (float)window_divisor(p.y, startY, tapsY, p.skip);
        best.value /= n * (float)window_divisor(p.x, startX, tapsX, p.skip);
    }
    return best;
}

template <class T, bool max> DEVICE void pool(Thread t, GLOBAL T* y, GLOBAL u8* index, GLOBAL const T* x, PoolParams p) {
    u32 groups = (p.lanes + p.per - 1) / p.per;
    UNROLL_1 for (u32 i = t.block * t.threads + t.local; i < p.items; i += t.blocks * t.threads) {
        u32 row = i / groups, lane = i % groups * p.per, n = least(p.per, p.lanes - lane), byte = 0;
        UNROLL_1 for (u32 k = 0; k < n; k++) {
            u32 at = row * p.lanes + lane + k;
            Pooled best = pool_window<T, max>(x, place_of(at, p.z.out, p.y.out, p.x.out, p.channels, p.last), p);
            y[at] = narrow<T>(best.value);
            byte |= best.tap << k * p.bits;
        }
        if (!max || !p.indexed) continue;
        GLOBAL u8* to = index + row * p.row_bytes + (u64)lane * p.bits / 8;
        UNROLL_1 for (u32 k = 0; k < (p.bits + 7) / 8; k++) to[k] = (u8)(byte >> 8 * k);
    }
}

// pool_tap returns the tap in the index for a lane of a row of y.
DEVICE u32 pool_tap(GLOBAL const u8* index, u32 row, u32 lane, PoolParams p) {
    u64 bit = (u64)lane * p.bits;
    GLOBAL const u8* at = index + row * p.row_bytes + bit / 8;
    if (p.bits <= 8) return ((u32)*at >> (u32)(bit % 8)) & ((1u << p.bits) - 1);
    u32 tap = 0;
    for (u32 k = 0; k < p.bits / 8; k++) tap |= (u32)at[k] << 8 * k;
    return tap;
}

// pool_gradient returns the gradient of an element of x.
template <class T, bool max> DEVICE float pool_gradient(GLOBAL const T* dy, GLOBAL const u8* index, Place at, PoolParams p) {
    PoolRange rangeZ = windows_of(p.z, at.z), rangeY = windows_of(p.y, at.y), rangeX = windows_of(p.x, at.x);
    float sum = 0.0f;
    UNROLL_1 for (u32 z = rangeZ.lo; z < rangeZ.hi; z++) {
        i32 startZ = window_start(p.z, z);
        u32 kz = (u32)((i32)at.z - startZ);
        if (max && kz % p.z.dilation) continue;
        UNROLL_1 for (u32 y = rangeY.lo; y < rangeY.hi; y++) {
            i32 startY = window_start(p.y, y);
            u32 ky = (u32)((i32)at.y - startY);
            if (max && ky % p.y.dilation) continue;
            u32 tap = (kz / p.z.dilation * p.y.taps + ky / p.y.dilation) * p.x.taps;
            float n = 0;
            if (!max)
                n = (float)window_divisor(p.z, startZ, window_taps(p.z, z, startZ), p.skip) *
                    (float)window_divisor(p.y, startY, window_taps(p.y, y, startY), p.skip);
            UNROLL_1 for (u32 x = rangeX.lo; x < rangeX.hi; x++) {
                i32 startX = window_start(p.x, x);
                u32 kx = (u32)((i32)at.x - startX);
                u32 position = position_of(at.plane, z, y, x, p.z.out, p.y.out, p.x.out), from = pool_at(at, position, p);
                if (!max) {
                    sum += widen(dy[from]) / (n * (float)window_divisor(p.x, startX, window_taps(p.x, x, startX), p.skip));
                    continue;
                }
                if (kx % p.x.dilation) continue;
                u32 row = p.last ? position : (at.plane * p.z.out + z) * p.y.out + y;
                if (pool_tap(index, row, p.last ? at.channel : x, p) == tap + kx / p.x.dilation) sum += widen(dy[from]);
            }
        }
    }
    return sum;
}

template <class T, bool max> DEVICE void pool_backward(Thread t, GLOBAL T* dx, GLOBAL const T* dy, GLOBAL const u8* index, PoolParams p) {
    UNROLL_1 for (u32 i = t.block * t.threads + t.local; i < p.items; i += t.blocks * t.threads) {
        Place at = place_of(i, p.z.in, p.y.in, p.x.in, p.channels, p.last);
        enter(dx + i, pool_gradient<T, max>(dy, index, at, p), p.alpha, p.beta);
    }
}

#define POOL(NAME, MAX, T)                                                                                          \
    KERNEL(conv_##NAME##_##T, 256, OPERAND(T, y, 0), OPERAND(u8, index, 1), OPERAND(const T, x, 2),                 \
           PARAMS(PoolParams, p)) {                                                                                 \
        pool<T, MAX>(THREAD, y, index, x, p);                                                                       \
    }                                                                                                               \
    KERNEL(conv_##NAME##_backward_##T, 256, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const u8, index, 2), \
           PARAMS(PoolParams, p)) {                                                                                 \
        pool_backward<T, MAX>(THREAD, dx, dy, index, p);                                                            \
    }
#define MAX_POOL(T) POOL(maxpool, true, T)
#define AVG_POOL(T) POOL(avgpool, false, T)
FOR_FLOATS(MAX_POOL)
FOR_FLOATS(AVG_POOL)
