// ChannelNorm where the channels are first: LayerNorm over channels that lie apart. A block has WARP positions, side by side, and its
// warps every few channels of them.
#pragma once

struct ChannelNormParams {
    u32 batch, channels, positions, unused;
    f32 eps, alpha, beta;
    u32 unused2;
};

// position_sum returns the sum over the warps for this thread's position.
DEVICE float position_sum(Thread t, float x, GROUP float* room) {
    strip_sum(t, WARP, x, room);
    x = room[lane_of(t)];
    sync_threads();
    return x;
}

template <class T>
DEVICE void channel_norm(Thread t, GLOBAL T* out, GLOBAL f32* mean, GLOBAL f32* rstd, GLOBAL const T* x, GLOBAL const T* gamma,
                         GLOBAL const T* beta, ChannelNormParams p, GROUP float* room) {
    u32 all = p.batch * p.positions, warps = t.threads / WARP;
    UNROLL_1 for (u32 first = t.block * WARP; first < all; first += t.blocks * WARP) {
        u32 q = first + lane_of(t), from = q < all ? warp_of(t) : p.channels; // no channels of positions that are not there
        u32 at = q / p.positions * p.channels * p.positions + q % p.positions;
        float start = q < all ? widen(x[at]) : 0.0f, sum = 0, rest = 0, squares = 0;
        UNROLL_2 for (u32 c = from; c < p.channels; c += warps) sum += widen(x[at + c * p.positions]) - start;
        float center = start + position_sum(t, sum, room) / (float)p.channels;
        UNROLL_2 for (u32 c = from; c < p.channels; c += warps) {
            float d = widen(x[at + c * p.positions]) - center;
            rest += d;
            squares = fused_mul_add(d, d, squares);
        }
        rest = position_sum(t, rest, room) / (float)p.channels;
        squares = position_sum(t, squares, room) / (float)p.channels - rest * rest;
        float m = center + rest, r = 1.0f / square_root((squares < 0.0f ? 0.0f : squares) + p.eps);
        if (q < all && warp_of(t) == 0) mean[q] = m, rstd[q] = r;
        UNROLL_2 for (u32 c = from; c < p.channels; c += warps)
            out[at + c * p.positions] = narrow<T>(fused_mul_add((widen(x[at + c * p.positions]) - m) * r, widen(gamma[c]), widen(beta[c])));
    }
}

template <class T>
DEVICE void channel_norm_backward(Thread t, GLOBAL T* dx, GLOBAL const T* dy, GLOBAL const T* x, GLOBAL const f32* mean, GLOBAL const f32* rstd,
                                  GLOBAL const T* gamma, ChannelNormParams p, GROUP float* room) {
    u32 all = p.batch * p.positions, warps = t.threads / WARP;
    UNROLL_1 for (u32 first = t.block * WARP; first < all; first += t.blocks * WARP) {
        u32 q = first + lane_of(t), from = q < all ? warp_of(t) : p.channels;
        u32 at = q / p.positions * p.channels * p.positions + q % p.positions;
        float m = q < all ? mean[q] : 0.0f, r = q < all ? rstd[q] : 0.0f, sum = 0, dot = 0;
        UNROLL_2 for (u32 c = from; c < p.channels; c += warps) {
            float g = widen(dy[at + c * p.positions]) * widen(gamma[c]);
            sum += g;
            dot = fused_mul_add(g, widen(x[at + c * p.positions]) - m, dot);
        }
        sum = position_sum(t, sum, room) / (float)p.channels;
        dot = position_sum(t, dot, room) / (float)p.channels * r * r;
        UNROLL_2 for (u32 c = from; c < p.channels; c += warps) {
            u32 i = at + c * p.positions;
            float g = r * (widen(dy[i]) * widen(gamma[c]) - sum - (widen(x[i]) - m) * dot) * p.alpha;
            if (p.beta != 0.0f) g += p.beta * widen(dx[i]);
            dx[i] = narrow<T>(g);
        }
    }
}

// The gradients of the parameters: a block has a channel.
template <class T>
DEVICE void channel_norm_params(Thread t, GLOBAL f32* dgamma, GLOBAL f32* dbeta, GLOBAL const T* dy, GLOBAL const T* x, GLOBAL const f32* mean,
                                GLOBAL const f32* rstd, ChannelNormParams p, GROUP float* room) {
    u32 all = p.batch * p.positions;
    UNROLL_1 for (u32 c = t.block; c < p.channels; c += t.blocks) {
        float sum = 0, dot = 0;
        UNROLL_2 for (u32 q = t.local; q < all; q += t.threads) {
            u32 i = (q / p.positions * p.channels + c) * p.positions + q % p.positions;
            float d = widen(dy[i]);
            sum += d;
            dot = fused_mul_add(d, (widen(x[i]) - mean[q]) * rstd[q], dot);
        }
        sum = block_sum(t, sum, room), dot = block_sum(t, dot, room);
        if (t.local > 0) continue;
        dgamma[c] = p.beta != 0.0f ? p.beta * dgamma[c] + p.alpha * dot : p.alpha * dot;
        dbeta[c] = p.beta != 0.0f ? p.beta * dbeta[c] + p.alpha * sum : p.alpha * sum;
    }
}

#define CHANNEL_NORM(T)                                                                                                 \
    KERNEL(fused_channel_norm_##T, 256, OPERAND(T, out, 0), OPERAND(f32, mean, 1), OPERAND(f32, rstd, 2),               \
           OPERAND(const T, x, 3), OPERAND(const T, gamma, 4), OPERAND(const T, beta, 5), PARAMS(ChannelNormParams, p)) { \
        SHARED(float, room, 256);                                                                                       \
        channel_norm<T>(THREAD, out, mean, rstd, x, gamma, beta, p, room);                                              \
    }                                                                                                                   \
    KERNEL(fused_channel_norm_backward_##T, 256, OPERAND(T, dx, 0), OPERAND(const T, dy, 1), OPERAND(const T, x, 2),    \
           OPERAND(const f32, mean, 3), OPERAND(const f32, rstd, 4), OPERAND(const T, gamma, 5),                        \
           PARAMS(ChannelNormParams, p)) {                                                                              \
        SHARED(float, room, 256);                                                                                       \
        channel_norm_backward<T>(THREAD, dx, dy, x, mean, rstd, gamma, p, room);                                        \
    }                                                                                                                   \
    KERNEL(fused_channel_norm_params_##T, 256, OPERAND(f32, dgamma, 0), OPERAND(f32, dbeta, 1), OPERAND(const T, dy, 2), \
           OPERAND(const T, x, 3), OPERAND(const f32, mean, 4), OPERAND(const f32, rstd, 5), PARAMS(ChannelNormParams, p)) { \
        SHARED(float, room, 256);                                                                                       \
        channel_norm_params<T>(THREAD, dgamma, dbeta, dy, x, mean, rstd, p, room);                                      \
    }
FOR_FLOATS(CHANNEL_NORM)
