// The gradients of the weights and of the bias, a product over the positions of all images: weights.go has it. Its rows are the
// channels of y, its columns the channels of x times the taps, and behind them for the bias a column of ones. Parts of the
// positions are added apart, and then in order.
#pragma once
#include "correlate.h"

struct WeightParams {
    u64 jobs;
    u64 depth, part; // positions of all images, and of a part
    u64 wLen;        // elements of w; a part's sums are these and the bias's
    ConvDim z, y, x;
    u32 groups, rows, channels; // channels of a group, of y and of x
    u32 last;
    u32 first, end; // columns; the last of channels·taps + 1 is the bias's
    u32 parts, wide; // wide: see units.h
    f32 alpha, beta;
};

// Positions describes the positions of all images, which are the depth.
struct Positions {
    ConvDim z, y, x;
    u32 groups, group, rows, channels, last;

    DEVICE_MEMBER u32 in_size() const { return (u32)(z.in * y.in * x.in); }
    DEVICE_MEMBER u32 out_size() const { return (u32)(z.out * y.out * x.out); }

    DEVICE_MEMBER Step step(u32 k, bool there) const {
        if (!there) return Step{0, NONE, NOWHERE, NOWHERE, NOWHERE};
        Place p = place_of(k, (u32)z.out, (u32)y.out, (u32)x.out, 1, 0);
        i32 atZ = (i32)p.z * z.stride - z.pad, atY = (i32)p.y * y.stride - y.pad, atX = (i32)p.x * x.stride - x.pad;
        u32 at = position_of(0, (u32)atZ, (u32)atY, (u32)atX, 0, (u32)y.in, (u32)x.in);
        if (last) return Step{(p.plane * in_size() + at) * groups * channels, k * groups * rows, atZ, atY, atX};
        u32 of = k - p.plane * out_size() + p.plane * groups * rows * out_size();
        return Step{p.plane * groups * channels * in_size() + at, of, atZ, atY, atX};
    }

    // line describes column n: a tap of a channel of x, or the bias. All taps of a channel follow one another, or where channels are last
    // all channels of a tap.
    DEVICE_MEMBER Line line(u32 n, u32 end) const {
        u32 taps = (u32)(z.taps * y.taps * x.taps), channel = last ? n % channels : n / taps, tap = last ? n / channels : n % taps;
        if (n >= end || n >= channels * taps) return Line{0, n < end ? n : NONE, NOWHERE, NOWHERE, NOWHERE, 1.0f};
        n = channel * taps + tap;
        i32 atX = (i32)(tap % (u32)x.taps) * x.dilation;
        tap /= (u32)x.taps;
        i32 atZ = (i32)(tap / (u32)y.taps) * z.dilation, atY = (i32)(tap % (u32)y.taps) * y.dilation;
        u32 at = position_of(0, (u32)atZ, (u32)atY, (u32)atX, 0, (u32)y.in, (u32)x.in);
        channel += group * channels;
        return Line{last ? at * groups * channels + channel : at + channel * in_size(), n, atZ, atY, atX, 0};
    }

    // source is what a row of the group reads.
    template <class T> DEVICE_MEMBER Source<T> source(GLOBAL const T* x_, GLOBAL const T* dy, u32 lanes, u32 wide) const {
        u32 row = last ? 1 : out_size();
        return Source<T>{dy + group * rows * row, row, rows, x_, z.in, y.in, x.in, lanes, wide};
    }
};

// put_weight finishes a sum: of a row of all groups and column n.
DEVICE void put_weight(GLOBAL f32* dw, GLOBAL f32* db, GLOBAL f32* sums, u32 part, u32 row, u32 n, float sum, WeightParams p) {
    u32 all = p.groups * p.rows, cols = (u32)p.wLen / all;
    if (p.parts > 1) {
        sums[part * (p.wLen + all) + (n < cols ? row * cols + n : (u32)p.wLen + row)] = sum;
    } else if (n < cols) {
        enter(dw + row * cols + n, sum, p.alpha, p.beta);
    } else {
        enter(db + row, sum, p.alpha, p.beta);
    }
}

template <class S, class T>
DEVICE void weights(Thread t, GLOBAL f32* dw, GLOBAL f32* db, GLOBAL f32* sums, GLOBAL const T* x, GLOBAL const T* dy, WeightParams p,
                    GROUP Quad* memory, GROUP Line* lines, GROUP Step* steps) {
    const u32 rows = S::LEFT - 4, cols = S::RIGHT - 4;
    u32 down = (p.rows + rows - 1) / rows, across = (p.end - p.first + cols - 1) / cols;
    UNROLL_1 for (u32 job = t.block; job < p.jobs; job += t.blocks) {
        u32 row = job % down * rows, col = p.first + job / down % across * cols, rest = job / down / across, group = rest % p.groups;
        u32 part = rest / p.groups, from = part * (u32)p.part;
        Positions f = {p.z, p.y, p.x, p.groups, group, p.rows, p.channels, p.last};
        UNROLL_1 for (u32 i = t.local; i < cols; i += t.threads) {
            Line line = f.line(col + i, p.end);
            lines[i] = line;
        }
        sync_threads();
        u32 depth = from < p.depth ? least((u32)p.part, (u32)p.depth - from) : 0;
        Source<T> s = f.source(x, dy, p.last, p.wide);
        S::product(t, s, f, row, from, depth, lines, steps, memory);
        UNROLL_1 for (u32 i = t.local; i < rows * cols; i += t.threads) {
            u32 r = i / cols, c = i % cols;
            if (row + r < p.rows && lines[c].place != NONE)
                put_weight(dw, db, sums, part, group * p.rows + row + r, lines[c].place, tile_sum<S>(memory, r, c), p);
        }
        sync_threads();
    }
}

#define WEIGHTS(T)                                                                                                     \
    KERNEL(conv_weights_##T, 256, OPERAND(f32, dw, 0), OPERAND(f32, db, 1), OPERAND(f32, sums, 2), OPERAND(const T, x, 3), \
           OPERAND(const T, dy, 4), PARAMS(WeightParams, p)) {                                                         \
        typedef SquareOf<T>::Tile Tile;                                                                                \
        SHARED(Quad, memory, Tile::ROOM);                                                                            \
        SHARED(Line, lines, Tile::RIGHT - 4);                                                                        \
        SHARED(Step, steps, 2 * Tile::DEPTH);                                                                        \
        weights<Tile, T>(THREAD, dw, db, sums, x, dy, p, memory, lines, steps);                                      \
    }
FOR_FLOATS(WEIGHTS)

// ---- few channels a group: a block adds one column of one row, or where channels are last of WARP rows

template <class T>
DEVICE void weights_each(Thread t, GLOBAL f32* dw, GLOBAL f32* db, GLOBAL f32* sums, GLOBAL const T* x, GLOBAL const T* dy, WeightParams p,
                         GROUP float* room) {
    u32 lanes = p.last ? WARP : 1, all = p.groups * p.rows, down = (all + lanes - 1) / lanes, across = p.end - p.first;
    UNROLL_1 for (u32 job = t.block; job < p.jobs; job += t.blocks) {
        u32 part = job / down / across, n = p.first + job / down % across, row = job % down * lanes + t.local % lanes, group = row / p.rows;
        u32 place = n;
        float sum = 0;
        if (row < all) {
            Positions f = {p.z, p.y, p.x, p.groups, group, p.rows, p.channels, p.last};
            Source<T> s = f.source(x, dy, 0, 0);
            Line line = f.line(n, p.end);
            place = line.place;
            u32 end = (u32)least((part + 1) * p.part, p.depth);
            UNROLL_1 for (u32 k = part * (u32)p.part + t.local / lanes; k < end; k += t.threads / lanes) {
                Step at = f.step(k, true);
                sum = fused_mul_add(left_value(s, row - group * p.rows, at), right_value(s, line, at), sum);
            }
        }
        room[t.local] = sum;
        for (u32 d = t.threads / 2; d >= lanes; d /= 2) {
            sync_threads();
            if (t.local < d) room[t.local] += room[t.local + d];
        }
        if (t.local < lanes && row < all) put_weight(dw, db, sums, part, row, place, room[t.local], p);
        sync_threads();
    }
}

#define WEIGHTS_EACH(T)                                                                                                \
    KERNEL(conv_weights_each_##T, 256, OPERAND(f32, dw, 0), OPERAND(f32, db, 1), OPERAND(f32, sums, 2), OPERAND(const T, x, 3), \
           OPERAND(const T, dy, 4), PARAMS(WeightParams, p)) {                                                         \
        SHARED(float, room, 256);                                                                                      \
        weights_each<T>(THREAD, dw, db, sums, x, dy, p, room);                                                         \
    }
FOR_FLOATS(WEIGHTS_EACH)

// ---- the sums of the parts

struct WeightSumParams {
    u64 wLen, all; // elements of dw, and with db of a part
    u64 first, end;
    u32 parts;
    f32 alpha, beta;
    u32 unused;
};

KERNEL(conv_weight_sums, 256, OPERAND(f32, dw, 0), OPERAND(f32, db, 1), OPERAND(const f32, sums, 2), PARAMS(WeightSumParams, p)) {
    Thread t = THREAD;
    for (u64 i = p.first + (u64)t.block * t.threads + t.local; i < p.end; i += (u64)t.blocks * t.threads) {
        float sum = 0;
        for (u32 part = 0; part < p.parts; part++) sum += sums[part * p.all + i];
        enter(i < p.wLen ? dw + i : db + (i - p.wLen), sum, p.alpha, p.beta);
    }
}
