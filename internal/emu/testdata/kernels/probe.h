// Kernels that probe the emulator: some are right, most have one planted fault.

struct ProbeParams {
    u32 n, trans_a, trans_b;
};

#if defined(HAS_F16_UNITS)
// 16×16 products: c = a·b for 16×16 operands of 16-bit numbers, from tiles of
// block memory with a stride that differs from their width.
template <class T>
DEVICE void product(Thread t, GLOBAL float* c, GLOBAL const T* a, GLOBAL const T* b, GROUP T* sa, GROUP T* sb, u32 trans_a, u32 trans_b) {
    for (u32 i = t.local; i < 32; i += t.threads) { // 8 elements each
        copy_async(sa + i / 2 * 24 + i % 2 * 8, a + i * 8, true);
        copy_async(sb + i / 2 * 24 + i % 2 * 8, b + i * 8, true);
    }
    copy_async_commit();
    copy_async_wait<0>();
    sync_threads();
    FragA<T> fa;
    FragB<T> fb[2];
    if (trans_a) load_a_transposed(fa, sa, 24);
    else load_a(fa, sa, 24);
    if (trans_b) load_b_transposed(fb, sb, 24);
    else load_b(fb, sb, 24);
    u32 lane = matrix_lane(t);
    for (u32 j = 0; j < 2; j++) {
        Acc acc = acc_zero();
        multiply(acc, fa, fb[j]);
        for (u32 e = 0; e < 4; e++) c[acc_row(lane, e / 2) * 16 + 8 * j + acc_col(lane) + e % 2] = acc.x[e];
    }
}

#define PRODUCT(T)                                                                                                       \
    KERNEL(probe_product_##T, 32, OPERAND(float, c, 0), OPERAND(const T, a, 1), OPERAND(const T, b, 2),                  \
           PARAMS(ProbeParams, p)) {                                                                                     \
        SHARED(Wide16, sa, 16 * 24 * 2 / 16);                                                                            \
        SHARED(Wide16, sb, 16 * 24 * 2 / 16);                                                                            \
        product<T>(THREAD, c, a, b, (GROUP T*)sa, (GROUP T*)sb, p.trans_a, p.trans_b);                                   \
    }
PRODUCT(f16)
PRODUCT(bf16)

// rows: sums and maxima over a row of an accumulator, and back to an operand.
KERNEL(probe_rows, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    u32 lane = matrix_lane(t);
    SHARED(Wide16, identity, 16 * 16 * 2 / 16);
    GROUP bf16* one = (GROUP bf16*)identity;
    for (u32 i = t.local; i < 256; i += t.threads) one[i] = narrow<bf16>(i / 16 == i % 16 ? 1.0f : 0.0f);
    sync_threads();
    Acc acc[2];
    for (u32 j = 0; j < 2; j++)
        for (u32 e = 0; e < 4; e++) acc[j].x[e] = in[acc_row(lane, e / 2) * 16 + 8 * j + acc_col(lane) + e % 2];
    for (u32 h = 0; h < 2; h++) {
        float sum = row_sum(acc[0].x[2 * h] + acc[0].x[2 * h + 1]), most = row_max(maximum(acc[0].x[2 * h], acc[0].x[2 * h + 1]));
        out[256 + acc_row(lane, h)] = sum; // every lane of the row writes the same
        out[272 + acc_row(lane, h)] = most;
    }
    FragA<bf16> a;
    FragB<bf16> b[2];
    acc_to_a(a, acc[0], acc[1]);
    load_b(b, one, 16);
    for (u32 j = 0; j < 2; j++) {
        Acc c = acc_zero();
        multiply(c, a, b[j]);
        for (u32 e = 0; e < 4; e++) out[acc_row(lane, e / 2) * 16 + 8 * j + acc_col(lane) + e % 2] = c.x[e];
    }
}

#endif

// shuffles: right. out[i] has what lane exchange gives in a block of two warps, which are at different places.
KERNEL(probe_shuffles, 64, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    float x = in[t.local];
    out[t.local] = shuffle(x, 5);
    out[64 + t.local] = shuffle(x, (lane_of(t) + 1) % WARP);
    out[128 + t.local] = shuffle_xor(x, 16);
    for (u32 turn = 0; turn <= warp_of(t); turn++) x = warp_sum(x);
    out[192 + t.local] = x;
    if (warp_of(t) == 1) sync_warp();
    out[256 + t.local] = any_of_warp(t.local < p.n) ? 1 : 0;
}

// reverse: right. out[i] = in[n-1-i] through block memory.
KERNEL(probe_reverse, 64, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    SHARED(float, s, 64);
    s[t.local] = in[t.local];
    sync_threads();
    out[t.local] = s[63 - t.local];
}

// A barrier is missing: warps read what others write.
KERNEL(probe_race, 64, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    SHARED(float, s, 64);
    s[t.local] = in[t.local];
    out[t.local] = s[t.local % 32];
}

// Lanes of one warp exchange without sync_warp.
KERNEL(probe_lanes, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    SHARED(float, s, 32);
    s[t.local] = in[t.local];
    if (p.n) sync_warp();
    out[t.local] = s[t.local / 2];
}

// An exchange of lanes is no barrier: the lanes have exchanged, and their stores may not be seen.
KERNEL(probe_exchanged, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    SHARED(float, s, 32);
    s[t.local] = in[t.local];
    float x = shuffle(in[t.local], 0);
    if (p.n) sync_warp();
    out[t.local] = s[31 - t.local] + x;
}

// The block that comes last adds the sums of all, which wants a fence between a sum and its count. out has the sum of all,
// the count, and then the sums of the blocks.
KERNEL(probe_partial, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    float sum = warp_sum(in[t.block * 32 + t.local]);
    GLOBAL u32* count = (GLOBAL u32*)(out + 1);
    if (t.local == 0) {
        out[2 + t.block] = sum;
        if (p.n) {
#if defined(SNUG_CUDA)
            __threadfence();
#else
            atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
#endif
        }
        atomic_add_u32(count, 1);
        if (*count == t.blocks) {
            float all = 0;
            for (u32 b = 0; b < t.blocks; b++) all += out[2 + b];
            out[0] = all;
        }
    }
}

// A thread stores to one place before and after a barrier: the last store counts.
KERNEL(probe_twice, 32, OPERAND(float, out, 0), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    out[t.local] = 1;
    sync_threads();
    out[t.local] += 1;
}

// NaNs of arithmetic, and of moves and of changes of sign.
KERNEL(probe_nan, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    float x = in[t.local];
    GLOBAL float* to = out + 8 * t.local;
    to[0] = x;
    to[1] = -x;
    to[2] = magnitude(x);
    to[3] = x + 1.0f;
    to[4] = 1.0f - x;
    to[5] = fused_mul_add(x, 0.0f, x);
    to[6] = square_root(x - 8.0f) / 2;
    to[7] = 1.0f / (1.0f + x * 0.1f) * 0.3f; // each step rounded once
}

// The barrier comes too late: a thread overwrites what another still reads.
KERNEL(probe_reuse, 64, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    SHARED(float, s, 64);
    s[t.local] = in[t.local];
    sync_threads();
    float x = s[63 - t.local];
    if (p.n) sync_threads();
    if (t.local >= 32) s[t.local] = x;
    out[t.block * t.threads + t.local] = x;
}

// Block memory that nobody wrote.
KERNEL(probe_uninitialized, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    SHARED(float, s, 64);
    s[t.local] = in[t.local];
    sync_threads();
    out[t.local] = s[t.local + p.n];
}

// Beyond the operand, by p.n elements.
KERNEL(probe_read, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    out[t.local] = in[t.local + p.n];
}
KERNEL(probe_write, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    out[t.local + p.n] = in[t.local];
}

// Two blocks write one element.
KERNEL(probe_blocks, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    out[t.local + t.block * p.n] = in[t.local];
}

// Half of the block does not come to the barrier, half of the warp not to the
// exchange.
KERNEL(probe_barrier, 64, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    if (t.local < p.n) sync_threads();
    out[t.local] = in[t.local];
}
KERNEL(probe_exchange, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    float x = in[t.local];
    if (t.local < p.n) x = shuffle_xor(x, 1);
    out[t.local] = x;
}

// More block memory than every device has, where p.n is not 0.
KERNEL(probe_memory, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    SHARED(float, most, 8192);
    most[t.local] = in[t.local];
    sync_threads();
    if (p.n) {
        SHARED(float, more, 1);
        if (t.local == 0) more[0] = 1;
        sync_threads();
        out[t.local] = more[0];
    }
    out[t.local] = most[t.local];
}

// A thread that needs more than its stack.
DEVICE float deep(u32 depth, float x) {
    float y[64];
    for (u32 i = 0; i < 64; i++) y[i] = x + (float)i;
    if (depth > 0) return deep(depth - 1, y[depth % 64]) + y[(u32)x % 64];
    return y[0];
}
KERNEL(probe_stack, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    if (t.local == 31 && p.n) out[0] = deep(p.n / 256, in[0]);
    sync_threads();
    out[t.local] = in[t.local];
}

// Arithmetic on numbers that may be subnormal: as operands, as results, and moved.
KERNEL(probe_subnormal, 32, OPERAND(float, out, 0), OPERAND(const float, in, 1), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    out[t.local] = in[t.local] * bits_float(0x3f000000u + (p.n << 23)); // 2^(n-1)
    out[32 + t.local] = bits_float(float_bits(in[t.local]));
}

// last: wrong, without order. out[0] is the block that writes last, out[1] the thread of block 0 that does.
KERNEL(probe_last, 64, OPERAND(float, out, 0), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    out[0] = (float)t.block;
    if (t.block == 0) out[1] = (float)t.local;
}
