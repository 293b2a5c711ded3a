// Kernels that probe the instructions of compute capability 9.0: some are right, most
// have one planted fault, where n is not 0.

struct ProbeParams {
    u32 n, unused;
};

// copy: one box to out as it lies in block memory.
KERNEL_OF_GROUPS(hopper_copy, 32, MAP(map), OPERAND(u16, out, 0), OPERAND(const i32, at, 1), PARAMS(ProbeParams, p)) {
    ROOM_OF_LAUNCH(room);
    Thread t = THREAD;
    u32 box = shared_address(room), full = box + 2048;
    if (t.local == 0) {
        barrier_init(full, 1);
        barrier_init_done();
        barrier_expect(full, p.n == 1 ? 1024 : 2048);
        copy_box(box, map, at[0], at[1], at[2], at[3], full);
    }
    sync_threads();
    if (p.n != 2) barrier_wait(full, 0);
    for (u32 i = t.local; i < 1024; i += 32) out[i] = ((const u16*)room)[i];
}

// product: c = a·b of a 64×64 operand a by rows and b, 64×64 by rows (its transpose lies in
// memory) or 64×128 by columns. Both lie in boxes that threads write.
template <class T> DEVICE void put(u8* room, u32 at, u32 row, u32 column, u32 rows, T x) {
    *(T*)(room + swizzled(at + column / 64 * rows * BOX_ROW + row * BOX_ROW + column % 64 * 2)) = x;
}

template <class T> DEVICE void by_fragments(Thread t, float* c, const T* a, const T* b, u8* room, ProbeParams p) {
    u32 base = shared_address(room), at = 8192;
    for (u32 i = t.local; i < 64 * 128; i += t.threads) put(room, at, i / 128, i % 128, 64, b[i]);
    sync_threads();
    u32 warp = t.local / 32, lane = matrix_lane(t);
    FragA<T> fa[4];
    for (u32 k = 0; k < 4; k++)
        for (u32 r = 0; r < 4; r++) {
            const T* from = a + (16 * warp + lane / 4 + r % 2 * 8) * 64 + 16 * k + lane % 4 * 2 + r / 2 * 8;
            fa[k].x[r] = (u32)from[0].bits | (u32)from[1].bits << 16;
        }
    float sums[64];
    for (u32 i = 0; i < 64; i++) sums[i] = 1;
    if (p.n == 4) multiply_begin(sums);
    else if (p.n == 5) multiply_begin(fa);
    else if (p.n != 1) multiply_begin(sums, fa);
    for (u32 k = 0; k < 4; k++) multiply_registers<T, 128>(sums, fa[k], by_columns(base + at + k * 16 * BOX_ROW, 64 * BOX_ROW));
    multiply_commit();
    if (p.n == 2) put(room, at, 0, 0, 64, narrow<T>(3)); // while it is multiplied
    if (p.n != 3) multiply_wait<0>();
    else multiply_wait<1>();
    for (u32 i = 0; i < 64; i++)
        c[(16 * warp + acc_row(lane, i / 2 % 2)) * 128 + i / 4 * 8 + acc_col(lane) + i % 2] = sums[i];
    multiply_wait<0>();
}

template <class T> DEVICE void by_descriptors(Thread t, float* c, const T* a, const T* b, u8* room, ProbeParams p) {
    u32 base = shared_address(room), at = 8192;
    for (u32 i = t.local; i < 64 * 64; i += t.threads) {
        put(room, 0, i / 64, i % 64, 64, a[i]);
        put(room, at, i / 64, i % 64, 64, b[i]);
    }
    sync_threads();
    u32 warp = t.local / 32, lane = matrix_lane(t);
    float sums[32];
    for (u32 i = 0; i < 32; i++) sums[i] = 1;
    multiply_begin();
    for (u32 k = 0; k < 4; k++) multiply_shared<T, 64>(sums, by_rows(base + 32 * k), by_rows(base + at + 32 * k + p.n), k > 0);
    multiply_commit();
    multiply_wait<0>();
    for (u32 i = 0; i < 32; i++) c[(16 * warp + acc_row(lane, i / 2 % 2)) * 64 + i / 4 * 8 + acc_col(lane) + i % 2] = sums[i];
}

#define PRODUCTS(T)                                                                                                     \
    KERNEL_OF_GROUPS(hopper_fragments_##T, 128, OPERAND(float, c, 0), OPERAND(const T, a, 1), OPERAND(const T, b, 2),   \
                     PARAMS(ProbeParams, p)) {                                                                          \
        ROOM_OF_LAUNCH(room);                                                                                           \
        by_fragments<T>(THREAD, c, a, b, room, p);                                                                      \
    }                                                                                                                   \
    KERNEL_OF_GROUPS(hopper_descriptors_##T, 128, OPERAND(float, c, 0), OPERAND(const T, a, 1), OPERAND(const T, b, 2), \
                     PARAMS(ProbeParams, p)) {                                                                          \
        ROOM_OF_LAUNCH(room);                                                                                           \
        by_descriptors<T>(THREAD, c, a, b, room, p);                                                                    \
    }
PRODUCTS(f16)
PRODUCTS(bf16)

// operands: the numbers of descriptors and of permuted addresses.
KERNEL_OF_GROUPS(hopper_operands, 32, OPERAND(u64, out, 0), PARAMS(ProbeParams, p)) {
    Thread t = THREAD;
    if (t.local > 0) return;
    out[0] = by_rows(0x400);
    out[1] = by_columns(0x12000, 0x4000);
    out[2] = operand(0x38ff0, 0x10, 0x20);
    for (u32 i = 0; i < 16; i++) out[3 + i] = swizzled(0x800 + 128 * i + 16 * (i % 3));
}

// turns: threads of two groups at named barriers, and at a barrier that counts.
KERNEL_OF_GROUPS(hopper_turns, 64, OPERAND(u32, out, 0), PARAMS(ProbeParams, p)) {
    ROOM_OF_LAUNCH(room);
    Thread t = THREAD;
    u32 both = shared_address(room);
    if (t.local == 0) barrier_init(both, 64);
    sync_threads();
    u32 sum = 0;
    for (u32 i = 0; i < 4; i++) {
        if (t.local < 32) named_sync(1, 64);
        else if (p.n != 1 || i < 3) named_arrive(1, 64);
        out[64 * i + t.local] = i;
        barrier_arrive(both);
        barrier_wait(both, i % 2);
        sum += out[64 * i + 63 - t.local];
    }
    out[256 + t.local] = sum;
    if (p.n == 2 && t.local >= 32) named_arrive(1, 64);
}
