// Convolutions and their adjoints: y from x, and x from y. product.go has the products, problem.go the axes.
#pragma once
#include "tile.h"

// ConvDim is a dimension of a problem.
struct ConvDim { i32 in, out, taps, stride, dilation, pad; };

struct ConvParams {
    u64 jobs;  // parts of the result
    u64 lines; // of the largest phase, of all images
    ConvDim z, y, x;
    u32 batch, groups;
    u32 results, channels; // of a group, of the result and of what it is computed of
    u32 last, adjoint;     // channels are last; x is computed of y
    u32 biased, wide; // wide: see units.h
    f32 alpha, beta;
};

// Axis is a dimension of a correlation, see axis in problem.go.
struct Axis { i32 n, size, step, off, offStep, taps, tap, tapStep, out, outStep, outSize; };

DEVICE i32 divisor_of(i32 a, i32 b) {
    UNROLL_1 while (b != 0) {
        i32 rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

DEVICE u32 phases_of(ConvDim d, u32 adjoint) { return adjoint ? (u32)least(d.stride, d.in) : 1; }

DEVICE Axis axis_of(ConvDim d, u32 adjoint, i32 phase) {
    if (!adjoint) return Axis{d.out, d.in, d.stride, -d.pad, d.dilation, d.taps, 0, 1, 0, 1, d.out};
    i32 common = divisor_of(d.stride, d.dilation), tapStep = d.stride / common, first = least(tapStep, d.taps), tap = 0;
    UNROLL_1 while (tap < first && (phase + d.pad - tap * d.dilation) % d.stride != 0) tap++;
    i32 taps = tap < first ? (d.taps - tap - 1) / tapStep + 1 : 0;
    if (taps == 0) tap = 0;
    return Axis{(d.in - phase - 1) / d.stride + 1, d.out, 1, (phase + d.pad - tap * d.dilation) / d.stride, -d.dilation / common,
                taps, tap, tapStep, phase, d.stride, d.in};
}

// Correlation describes the operands of a part of the result.
struct Correlation {
    GROUP const Axis* axes; // outermost first
    u32 lines, group, groups, results, channels, last, adjoint;
    u32 taps, kernelY, kernelX; // of the kernel

    DEVICE_MEMBER u32 source_size() const { return (u32)(axes[0].size * axes[1].size * axes[2].size); }
    DEVICE_MEMBER u32 result_size() const { return (u32)(axes[0].outSize * axes[1].outSize * axes[2].outSize); }
    DEVICE_MEMBER u32 phase_taps() const { return (u32)(axes[0].taps * axes[1].taps * axes[2].taps); }
    // weight_row is the elements of w from one channel of the result to the next, weight_channel from one channel of the source to the next.
    DEVICE_MEMBER u32 weight_row() const { return adjoint ? taps : channels * taps; }
    DEVICE_MEMBER u32 weight_channel() const { return adjoint ? results * taps : taps; }

    // step describes row k of the right operand: all taps of a channel follow one another, or where channels are last all channels of a tap.
    DEVICE_MEMBER Step step(u32 k, bool there) const {
        if (!there) return Step{0, NONE, NOWHERE, NOWHERE, NOWHERE};
        u32 across = last ? channels : phase_taps(), tap = last ? k / across : k % across, channel = last ? k % across : k / across;
        i32 tx = (i32)(tap % (u32)axes[2].taps);
        tap /= (u32)axes[2].taps;
        i32 ty = (i32)(tap % (u32)axes[1].taps), tz = (i32)(tap / (u32)axes[1].taps);
        i32 z = tz * axes[0].offStep, y = ty * axes[1].offStep, x = tx * axes[2].offStep;
        u32 at = position_of(0, (u32)z, (u32)y, (u32)x, 0, (u32)axes[1].size, (u32)axes[2].size);
        at = last ? at * groups * channels + channel : at + channel * source_size();
        u32 of = position_of(0, (u32)(axes[0].tap + tz * axes[0].tapStep), (u32)(axes[1].tap + ty * axes[1].tapStep),
                             (u32)(axes[2].tap + tx * axes[2].tapStep), 0, kernelY, kernelX);
        return Step{at, channel * weight_channel() + of, z, y, x};
    }

    // line describes column n of the right operand: a position of the result in an image.
    DEVICE_MEMBER Line line(u32 n) const {
        if (n >= lines) return Line{0, NONE, NOWHERE, NOWHERE, NOWHERE, 0};
        Place p = place_of(n, (u32)axes[0].n, (u32)axes[1].n, (u32)axes[2].n, 1, 0);
        i32 z = (i32)p.z * axes[0].step + axes[0].off, y = (i32)p.y * axes[1].step + axes[1].off, x = (i32)p.x * axes[2].step + axes[2].off;
        u32 at = position_of(0, (u32)z, (u32)y, (u32)x, 0, (u32)axes[1].size, (u32)axes[2].size);
        u32 to = position_of(0, (u32)(axes[0].out + (i32)p.z * axes[0].outStep), (u32)(axes[1].out + (i32)p.y * axes[1].outStep),
                             (u32)(axes[2].out + (i32)p.x * axes[2].outStep), 0, (u32)axes[1].outSize, (u32)axes[2].outSize);
        if (last) {
            at = (p.plane * source_size() + at) * groups * channels + group * channels;
            to = (p.plane * result_size() + to) * groups * results + group * results;
        } else {
            at += (p.plane * groups + group) * channels * source_size();
            to += (p.plane * groups + group) * results * result_size();
        }
        return Line{at, to, z, y, x, 0};
    }
};

template <class S, class T>
DEVICE void correlate(Thread t, GLOBAL T* dst, GLOBAL const T* src, GLOBAL const T* w, GLOBAL const T* bias, ConvParams p, GROUP Quad* memory,
                      GROUP Line* lines, GROUP Step* steps, GROUP Axis* axes) {
    const u32 rows = S::LEFT - 4, cols = S::RIGHT - 4;
    u32 across = (p.results + rows - 1) / rows, tiles = ((u32)p.lines + cols - 1) / cols;
    u32 phasesY = phases_of(p.y, p.adjoint), phasesX = phases_of(p.x, p.adjoint);
    UNROLL_1 for (u32 job = t.block; job < p.jobs; job += t.blocks) {
        u32 row = job % across * rows, col = job / across % tiles * cols, rest = job / across / tiles, group = rest % p.groups;
        rest /= p.groups;
        if (t.local == 0) {
            Axis z = axis_of(p.z, p.adjoint, (i32)(rest / phasesX / phasesY)), y = axis_of(p.y, p.adjoint, (i32)(rest / phasesX % phasesY));
            Axis x = axis_of(p.x, p.adjoint, (i32)(rest % phasesX));
            axes[0] = z, axes[1] = y, axes[2] = x;
        }
        sync_threads();
        u32 taps = (u32)(p.z.taps * p.y.taps * p.x.taps);
        Correlation f = {axes, p.batch * (u32)(axes[0].n * axes[1].n * axes[2].n), group, p.groups, p.results, p.channels, p.last, p.adjoint,
                         taps, (u32)p.y.taps, (u32)p.x.taps};
        UNROLL_1 for (u32 i = t.local; i < cols; i += t.threads) {
            Line line = f.line(col + i);
            lines[i] = line;
        }
        sync_threads();
        if (col < f.lines) {
            Source<T> s = {w + group * (taps * p.results * p.channels), f.weight_row(), p.results, src, axes[0].size, axes[1].size, axes[2].size, !p.last, p.wide};
            S::product(t, s, f, row, 0, f.phase_taps() * p.channels, lines, steps, memory);
            UNROLL_1 for (u32 i = t.local; i < rows * cols; i += t.threads) {
                u32 r = p.last ? i % rows : i / cols, c = p.last ? i / rows : i % cols;
                if (row + r >= p.results || lines[c].place == NONE) continue;
                float sum = tile_sum<S>(memory, r, c);
                if (p.biased) sum += widen(bias[group * p.results + row + r]);
                enter(dst + lines[c].place + (row + r) * (p.last ? 1 : f.result_size()), sum, p.alpha, p.beta);
            }
        }
        sync_threads();
    }
}

typedef Shape<16, 64, 4> Flat; // for few channels or positions

#define CORRELATE(NAME, S, T)                                                                                          \
    KERNEL(conv_##NAME##_##T, 256, OPERAND(T, dst, 0), OPERAND(const T, src, 1), OPERAND(const T, w, 2),               \
           OPERAND(const T, bias, 3), PARAMS(ConvParams, p)) {                                                         \
        typedef S Tile;                                                                                                \
        SHARED(Quad, memory, Tile::ROOM);                                                                              \
        SHARED(Line, lines, Tile::RIGHT - 4);                                                                          \
        SHARED(Step, steps, 2 * Tile::DEPTH);                                                                          \
        SHARED(Axis, axes, 3);                                                                                         \
        correlate<Tile, T>(THREAD, dst, src, w, bias, p, memory, lines, steps, axes);                                     \
    }
#define CORRELATE_SQUARE(T) CORRELATE(square, SquareOf<T>::Tile, T)
#define CORRELATE_FLAT(T) CORRELATE(flat, Flat, T)
FOR_FLOATS(CORRELATE_SQUARE)
FOR_FLOATS(CORRELATE_FLAT)

// ---- few channels a group, as of a depthwise convolution: a thread computes an element

// read_of returns the coordinate in the source that element j of the result reads for a tap, -1 outside of the image.
DEVICE i32 read_of(ConvDim d, u32 adjoint, u32 j, i32 tap) {
    if (!adjoint) {
        i32 at = (i32)j * d.stride + tap * d.dilation - d.pad;
        return at < d.in ? at : -1;
    }
    i32 at = (i32)j + d.pad - tap * d.dilation;
    if (at < 0 || d.stride == 1) return at < d.out ? at : -1;
    i32 of = at / d.stride;
    return of * d.stride == at && of < d.out ? of : -1;
}

template <class T>
DEVICE void correlate_each(Thread t, GLOBAL T* dst, GLOBAL const T* src, GLOBAL const T* w, GLOBAL const T* bias, ConvParams p) {
    u32 all = p.groups * p.results, taps = (u32)(p.z.taps * p.y.taps * p.x.taps);
    u32 dstZ = (u32)(p.adjoint ? p.z.in : p.z.out), dstY = (u32)(p.adjoint ? p.y.in : p.y.out), dstX = (u32)(p.adjoint ? p.x.in : p.x.out);
    u32 srcZ = (u32)(p.adjoint ? p.z.out : p.z.in), srcY = (u32)(p.adjoint ? p.y.out : p.y.in), srcX = (u32)(p.adjoint ? p.x.out : p.x.in);
    u32 size = srcZ * srcY * srcX, next = p.adjoint ? p.results * taps : taps, channel = p.last ? 1 : size, unit = p.last ? p.groups * p.channels : 1;
    UNROLL_1 for (u32 i = t.block * t.threads + t.local; i < p.jobs; i += t.blocks * t.threads) {
        Place at = place_of(i, dstZ, dstY, dstX, all, p.last);
        u32 image = p.last ? at.plane : at.plane / all, result = p.last ? at.channel : at.plane % all, group = result / p.results;
        u32 weight = group * (p.results * p.channels * taps) + result % p.results * (p.adjoint ? taps : p.channels * taps);
        u32 base = image * p.groups * p.channels * size + group * p.channels * channel;
        float sum = 0;
        UNROLL_1 for (i32 kz = 0; kz < p.z.taps; kz++) {
            i32 z = read_of(p.z, p.adjoint, at.z, kz);
            UNROLL_1 for (i32 ky = 0; ky < p.y.taps; ky++) {
                i32 y = read_of(p.y, p.adjoint, at.y, ky);
                if (z < 0 || y < 0) {
                    weight += p.x.taps;
                    continue;
                }
                u32 row = ((u32)z * srcY + (u32)y) * srcX;
                UNROLL_1 for (i32 kx = 0; kx < p.x.taps; kx++, weight++) {
                    i32 x = read_of(p.x, p.adjoint, at.x, kx);
                    if (x < 0) continue;
                    u32 from = base + (row + (u32)x) * unit;
                    UNROLL_1 for (u32 c = 0; c < p.channels; c++)
                        sum = fused_mul_add(widen(w[weight + c * next]), widen(src[from + c * channel]), sum);
                }
            }
        }
        if (p.biased) sum += widen(bias[result]);
        enter(dst + i, sum, p.alpha, p.beta);
    }
}

#define CORRELATE_EACH(T)                                                                                              \
    KERNEL(conv_each_##T, 256, OPERAND(T, dst, 0), OPERAND(const T, src, 1), OPERAND(const T, w, 2),                   \
           OPERAND(const T, bias, 3), PARAMS(ConvParams, p)) {                                                         \
        correlate_each<T>(THREAD, dst, src, w, bias, p);                                                               \
    }
FOR_FLOATS(CORRELATE_EACH)
