// Norms of images: GroupNorm and BatchNorm, whose equations are in their Go texts. Vectors have fewer than 2^32 elements.
#pragma once

struct ImageParams {
    u64 n; // elements
    u32 batch, channels, positions, last;
    u32 parts, part;      // parts of the positions of an image, and how many a part has; one part unless channels are last
    u32 per_image, width; // statistics of an image, 0 if all images share them, and channels that share one
    f32 alpha, beta;
    u32 wide, units; // wide: packs move whole and lie in one plane or row; units: parts of all images
    f32 count, eps;  // elements that sums are over
    u32 write_rstd, write_sums; // bits: 1 for the sums of BatchNorm, 2 for the gradients of parameters
};

DEVICE u32 statistic_of(u32 b, u32 c, ImageParams p) { return b * p.per_image + c / p.width; }

// ---- sums over positions. A block sums a strip: one channel in a part of an image, or where channels are last WARP channels. Each of
// its threads takes every each-th position of one channel, and the sums of a channel's threads are added in a fixed order.

struct Strip {
    u32 across;   // channels
    u32 unit, c;  // the part, counted over all images, and this thread's channel
    u32 at, step; // this thread's first element, and how far the next is
    u32 n, each;  // positions of the part, and every how many this thread takes
    u32 first;    // of them
};

DEVICE u32 strips_of(ImageParams p) { return p.last ? (p.channels + WARP - 1) / WARP : p.channels; }

DEVICE Strip strip_of(Thread t, u32 job, ImageParams p) {
    Strip s;
    u32 strips = strips_of(p);
    s.across = p.last ? WARP : 1;
    s.unit = job / strips;
    s.c = job % strips * s.across + t.local % s.across;
    s.each = t.threads / s.across;
    s.first = t.local / s.across;
    u32 b = s.unit / p.parts, from = s.unit % p.parts * p.part;
    s.n = least(p.part, p.positions - from);
    s.step = p.last ? p.channels : 1;
    s.at = p.last ? (b * p.positions + from) * p.channels + s.c : (b * p.channels + s.c) * p.positions;
    return s;
}

// strip_sum leaves the sums of the threads of a channel at room[t.local % across].
DEVICE void strip_sum(Thread t, u32 across, float x, GROUP float* room) {
    room[t.local] = x;
    for (u32 d = t.threads / 2; d >= across; d /= 2) {
        sync_threads();
        if (t.local < d) room[t.local] += room[t.local + d];
    }
    sync_threads();
}

// Moments are a number of elements, their mean, and the sum of their squared distances from it. The mean is mean + rest, where rest is
// what mean rounds away, so that the difference of two means does not cancel.
struct Moments { float n, mean, rest, m2; };

// merged adds elements (Chan, Golub and LeVeque, 1979).
DEVICE Moments merged(Moments a, Moments b) {
    if (a.n == 0.0f) return b;
    if (b.n == 0.0f) return a;
    float n = a.n + b.n, d = (b.mean - a.mean) + (b.rest - a.rest);
    return Moments{n, a.mean, a.rest + d * (b.n / n), a.m2 + (b.m2 + d * d * (a.n * (b.n / n)))};
}

// The moments of each channel of each part lie at ws: center, rest and m2, a vector of channels each.
template <class T> DEVICE void image_moments(Thread t, GLOBAL f32* ws, GLOBAL const T* x, ImageParams p, GROUP float* room) {
    u32 jobs = p.units * strips_of(p);
    UNROLL_1 for (u32 job = t.block; job < jobs; job += t.blocks) {
        Strip s = strip_of(t, job, p);
        bool in = s.c < p.channels;
        float start = in ? widen(x[s.at]) : 0.0f, sum = 0, rest = 0, squares = 0;
        if (in)
            UNROLL_2 for (u32 i = s.first; i < s.n; i += s.each) sum += widen(x[s.at + i * s.step]) - start;
        strip_sum(t, s.across, sum, room);
        float center = start + room[t.local % s.across] / (float)s.n;
        sync_threads();
        if (in)
            UNROLL_2 for (u32 i = s.first; i < s.n; i += s.each) {
                float d = widen(x[s.at + i * s.step]) - center;
                rest += d;
                squares = fused_mul_add(d, d, squares);
            }
        strip_sum(t, s.across, rest, room);
        rest = room[t.local % s.across];
        sync_threads();
        strip_sum(t, s.across, squares, room);
        if (t.local < s.across && in) {
            GLOBAL f32* to = ws + s.unit * 3 * p.channels + s.c;
            float m2 = room[t.local] - rest * rest / (float)s.n;
            to[0] = center;
            to[p.channels] = rest / (float)s.n;
            to[2 * p.channels] = m2 < 0.0f ? 0.0f : m2;
        }
        sync_threads();
    }
}

// The sums of dy and of dy·(x − mean) of each channel of each part lie at ws, a vector of channels each.
template <class T>
DEVICE void image_dots(Thread t, GLOBAL f32* ws, GLOBAL const T* dy, GLOBAL const T* x, GLOBAL const f32* mean, ImageParams p, GROUP float* room) {
    u32 jobs = p.units * strips_of(p);
    UNROLL_1 for (u32 job = t.block; job < jobs; job += t.blocks) {
        Strip s = strip_of(t, job, p);
        bool in = s.c < p.channels;
        float center = in ? mean[statistic_of(s.unit / p.parts, s.c, p)] : 0.0f, sum = 0, dot = 0;
        if (in)
            UNROLL_2 for (u32 i = s.first; i < s.n; i += s.each) {
                float d = widen(dy[s.at + i * s.step]);
                sum += d;
                dot = fused_mul_add(d, widen(x[s.at + i * s.step]) - center, dot);
            }
        strip_sum(t, s.across, sum, room);
        sum = room[t.local % s.across];
        sync_threads();
        strip_sum(t, s.across, dot, room);
        if (t.local < s.across && in) {
            ws[s.unit * 2 * p.channels + s.c] = sum;
            ws[(s.unit * 2 + 1) * p.channels + s.c] = room[t.local];
        }
        sync_threads();
    }
}

// ---- what a warp does with them: statistic k is of width channels from c on, in parts from unit on

struct Members { u32 c, unit, n; };

DEVICE Members members_of(u32 k, ImageParams p) {
    if (p.per_image == 0) return Members{k, 0, p.units};
    return Members{k % p.per_image * p.width, k / p.per_image * p.parts, p.width * p.parts};
}

KERNEL(fused_image_statistics, 256, OPERAND(f32, mean, 0), OPERAND(f32, second, 1), OPERAND(const f32, ws, 2), PARAMS(ImageParams, p)) {
    Thread t = THREAD;
    u32 all = p.per_image ? p.per_image * p.batch : p.channels, warps = t.threads / WARP, lane = lane_of(t);
    for (u32 k = t.block * warps + warp_of(t); k < all; k += t.blocks * warps) {
        Members m = members_of(k, p);
        u32 units = m.n / p.width;
        Moments sum = {0, 0, 0, 0};
        for (u32 i = lane; i < m.n; i += WARP) {
            u32 unit = m.unit + i % units, from = unit % p.parts * p.part;
            GLOBAL const f32* at = ws + unit * 3 * p.channels + m.c + i / units;
            sum = merged(sum, Moments{(float)least(p.part, p.positions - from), at[0], at[p.channels], at[2 * p.channels]});
        }
        for (u32 d = WARP / 2; d > 0; d /= 2) {
            Moments o = {shuffle_xor(sum.n, d), shuffle_xor(sum.mean, d), shuffle_xor(sum.rest, d), shuffle_xor(sum.m2, d)};
            sum = lane & d ? merged(o, sum) : merged(sum, o);
        }
        if (lane > 0) continue;
        mean[k] = sum.mean + sum.rest;
        second[k] = p.write_rstd ? 1.0f / square_root(sum.m2 / sum.n + p.eps) : sum.m2;
    }
}

// The gradients of gamma and beta, and for BatchNorm the sums that they are.
KERNEL(fused_image_params, 256, OPERAND(f32, dgamma, 0), OPERAND(f32, dbeta, 1), OPERAND(f32, sums, 2), OPERAND(const f32, ws, 3),
       OPERAND(const f32, rstd, 4), PARAMS(ImageParams, p)) {
    Thread t = THREAD;
    u32 warps = t.threads / WARP;
    for (u32 c = t.block * warps + warp_of(t); c < p.channels; c += t.blocks * warps) {
        float sum = 0, dot = 0;
        for (u32 unit = lane_of(t); unit < p.units; unit += WARP) {
            sum += ws[unit * 2 * p.channels + c];
            dot = fused_mul_add(ws[(unit * 2 + 1) * p.channels + c], rstd[statistic_of(unit / p.parts, c, p)], dot);
        }
        sum = warp_sum(sum), dot = warp_sum(dot);
        if (lane_of(t) > 0) continue;
        if (p.write_sums & 1) sums[c] = sum, sums[p.channels + c] = dot;
        if (!(p.write_sums & 2)) continue;
        dgamma[c] = p.beta != 0.0f ? p.beta * dgamma[c] + p.alpha * dot : p.alpha * dot;
        dbeta[c] = p.beta != 0.0f ? p.beta * dbeta[c] + p.alpha * sum : p.alpha * sum;
    }
}

// slope and offset of each group, by which dx depends on its sums.
template <class T>
DEVICE void image_slopes(Thread t, GLOBAL f32* slope, GLOBAL f32* offset, GLOBAL const f32* ws, GLOBAL const f32* rstd, GLOBAL const T* gamma, ImageParams p) {
    u32 all = p.per_image * p.batch, warps = t.threads / WARP;
    for (u32 k = t.block * warps + warp_of(t); k < all; k += t.blocks * warps) {
        Members m = members_of(k, p);
        u32 units = m.n / p.width;
        float g = 0, gx = 0;
        for (u32 i = lane_of(t); i < m.n; i += WARP) {
            u32 unit = m.unit + i % units, c = m.c + i / units;
            float factor = widen(gamma[c]);
            g = fused_mul_add(factor, ws[unit * 2 * p.channels + c], g);
            gx = fused_mul_add(factor, ws[(unit * 2 + 1) * p.channels + c], gx);
        }
        g = warp_sum(g), gx = warp_sum(gx);
        if (lane_of(t) > 0) continue;
        float r = rstd[k];
        slope[k] = -(r * r) * (r * (gx / p.count));
        offset[k] = -(r * (g / p.count));
    }
}

// ---- what is done to elements

// owner_of returns the statistic and the channel of element at + k of a pack: where channels are first a pack lies in one.
struct Owner { u32 statistic, c; };
DEVICE Owner owner_of(u32 at, ImageParams p) {
    u32 plane = at / (p.last ? p.positions * p.channels : p.positions);
    u32 c = p.last ? at % p.channels : plane % p.channels, b = p.last ? plane : plane / p.channels;
    return Owner{statistic_of(b, c, p), c};
}

template <class T> struct NormalizeOp {
    GLOBAL T* out;
    GLOBAL const T* x;
    GLOBAL const f32* mean;
    GLOBAL const f32* rstd;
    GLOBAL const T* gamma;
    GLOBAL const T* beta;
    ImageParams p;

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> y = load_pack<n>(x + i);
        Owner o = owner_of((u32)i, p);
        float center = mean[o.statistic], scale = rstd[o.statistic] * widen(gamma[o.c]), shift = widen(beta[o.c]);
        UNROLL for (u32 k = 0; k < n; k++) {
            if (k > 0 && p.last) {
                u32 s = o.statistic - o.c / p.width + (o.c + k) / p.width;
                center = mean[s], scale = rstd[s] * widen(gamma[o.c + k]), shift = widen(beta[o.c + k]);
            }
            y.x[k] = narrow<T>(fused_mul_add(widen(y.x[k]) - center, scale, shift));
        }
        store_pack<n>(out + i, y);
    }
};

// dx ← alpha·(gamma·rstd·dy + slope·(x − mean) + offset) + beta·dx, where slope and offset are of groups, or of sums of channels, or 0.
template <class T> struct SpreadOp {
    GLOBAL T* dx;
    GLOBAL const T* dy;
    GLOBAL const T* x;
    GLOBAL const f32* mean;
    GLOBAL const f32* rstd;
    GLOBAL const f32* slope; // of groups, or the sums of channels
    GLOBAL const f32* offset;
    GLOBAL const T* gamma;
    ImageParams p;

    // Factors are dx = y·dy + v·(x − center) + shift.
    struct Factors { float center, y, v, shift; };

    DEVICE_MEMBER Factors factors(u32 statistic, u32 c) const {
        float r = rstd[statistic];
        Factors f = {mean[statistic], p.alpha * (widen(gamma[c]) * r), 0.0f, 0.0f};
        if (p.per_image) {
            f.v = p.alpha * slope[statistic], f.shift = p.alpha * offset[statistic];
        } else if (p.write_sums & 1) {
            float each = -f.y / p.count;
            f.v = each * slope[p.channels + c] * r, f.shift = each * slope[c];
        }
        return f;
    }

    template <int n> DEVICE_MEMBER void at(u64 i) const {
        Pack<T, n> d = load_pack<n>(dy + i), v = load_pack<n>(x + i), old = v;
        if (p.beta != 0.0f) old = load_pack<n>(dx + i);
        Owner o = owner_of((u32)i, p);
        Factors f = factors(o.statistic, o.c);
        UNROLL for (u32 k = 0; k < n; k++) {
            if (k > 0 && p.last) f = factors(o.statistic - o.c / p.width + (o.c + k) / p.width, o.c + k);
            float g = fused_mul_add(f.v, widen(v.x[k]) - f.center, fused_mul_add(f.y, widen(d.x[k]), f.shift));
            if (p.beta != 0.0f) g += p.beta * widen(old.x[k]);
            d.x[k] = narrow<T>(g);
        }
        store_pack<n>(dx + i, d);
    }
};

template <class T>
DEVICE void image_normalize(Thread t, GLOBAL T* out, GLOBAL const T* x, GLOBAL const f32* mean, GLOBAL const f32* rstd, GLOBAL const T* gamma,
                            GLOBAL const T* beta, ImageParams p) {
    NormalizeOp<T> op = {out, x, mean, rstd, gamma, beta, p};
    each<16 / sizeof(T)>(t, p.n, p.wide, op);
}

template <class T>
DEVICE void image_spread(Thread t, GLOBAL T* dx, GLOBAL const T* dy, GLOBAL const T* x, GLOBAL const f32* mean, GLOBAL const f32* rstd,
                         GLOBAL const f32* slope, GLOBAL const f32* offset, GLOBAL const T* gamma, ImageParams p) {
    SpreadOp<T> op = {dx, dy, x, mean, rstd, slope, offset, gamma, p};
    each<16 / sizeof(T)>(t, p.n, p.wide, op);
}

#define IMAGE_NORMS(T)                                                                                                  \
    KERNEL(fused_image_moments_##T, 256, OPERAND(f32, ws, 0), OPERAND(const T, x, 1), PARAMS(ImageParams, p)) {         \
        SHARED(float, room, 256);                                                                                       \
        image_moments<T>(THREAD, ws, x, p, room);                                                                       \
    }                                                                                                                   \
    KERNEL(fused_image_dots_##T, 256, OPERAND(f32, ws, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2),             \
           OPERAND(const f32, mean, 3), PARAMS(ImageParams, p)) {                                                       \
        SHARED(float, room, 256);                                                                                       \
        image_dots<T>(THREAD, ws, dy, x, mean, p, room);                                                                \
    }                                                                                                                   \
    KERNEL(fused_image_slopes_##T, 256, OPERAND(f32, slope, 0), OPERAND(f32, offset, 1), OPERAND(const f32, ws, 2),     \
           OPERAND(const f32, rstd, 3), OPERAND(const T, gamma, 4), PARAMS(ImageParams, p)) {                           \
        image_slopes<T>(THREAD, slope, offset, ws, rstd, gamma, p);                                                     \
    }                                                                                                                   \
    KERNEL(fused_image_normalize_##T, 256, OPERAND(T, out, 0), OPERAND(const T, x, 1), OPERAND(const f32, mean, 2),     \
           OPERAND(const f32, rstd, 3), OPERAND(const T, gamma, 4), OPERAND(const T, beta, 5), PARAMS(ImageParams, p)) { \
        image_normalize<T>(THREAD, out, x, mean, rstd, gamma, beta, p);                                                 \
    }                                                                                                                   \
    KERNEL(fused_image_spread_##T, 256, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2),             \
           OPERAND(const f32, mean, 3), OPERAND(const f32, rstd, 4), OPERAND(const f32, slope, 5),                      \
           OPERAND(const f32, offset, 6), OPERAND(const T, gamma, 7), PARAMS(ImageParams, p)) {                         \
        image_spread<T>(THREAD, dx, dy, x, mean, rstd, slope, offset, gamma, p);                                        \
    }
FOR_FLOATS(IMAGE_NORMS)

// ---- moments of channels, an element each

struct ChannelParams {
    u32 n, unused;
    f32 a, b, c;
    u32 unused2;
};

// mean and m2 merged with others: a is what the others are of all elements, b the product of both numbers divided by all.
KERNEL(fused_merge_moments, 256, OPERAND(f32, mean, 0), OPERAND(f32, m2, 1), OPERAND(const f32, other, 2), OPERAND(const f32, other2, 3),
       PARAMS(ChannelParams, p)) {
    Thread t = THREAD;
    for (u32 i = t.block * t.threads + t.local; i < p.n; i += t.blocks * t.threads) {
        float d = other[i] - mean[i];
        m2[i] += other2[i] + d * d * p.b;
        mean[i] += d * p.a;
    }
}

// rstd = 1/√(m2/a + b)
KERNEL(fused_batch_rstd, 256, OPERAND(f32, rstd, 0), OPERAND(const f32, m2, 1), PARAMS(ChannelParams, p)) {
    Thread t = THREAD;
    for (u32 i = t.block * t.threads + t.local; i < p.n; i += t.blocks * t.threads) rstd[i] = 1.0f / square_root(m2[i] / p.a + p.b);
}

// running statistics: a times themselves and b times those of a batch, whose variance is m2/c
KERNEL(fused_update_running, 256, OPERAND(f32, runningMean, 0), OPERAND(f32, runningVar, 1), OPERAND(const f32, mean, 2),
       OPERAND(const f32, m2, 3), PARAMS(ChannelParams, p)) {
    Thread t = THREAD;
    for (u32 i = t.block * t.threads + t.local; i < p.n; i += t.blocks * t.threads) {
        runningMean[i] = fused_mul_add(p.a, runningMean[i], p.b * mean[i]);
        runningVar[i] = fused_mul_add(p.a, runningVar[i], p.b * (m2[i] / p.c));
    }
}
