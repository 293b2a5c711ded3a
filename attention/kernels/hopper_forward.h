// The forward pass on compute capability 9.0.
#pragma once
#include "hopper.h"

// ForwardRoom is where things lie in block memory, for ROWS queries and tiles of N keys.
template <u32 D, u32 ROWS, u32 N> struct ForwardRoom {
    enum : u32 {
        QUERIES = 0,
        KEYS = Tile<D, ROWS>::BYTES,
        VALUES = KEYS + STAGES * Tile<D, N>::BYTES,
        KEY_RING = VALUES + STAGES * Tile<D, N>::BYTES,
        VALUE_RING = KEY_RING + RING_BYTES,
        QUERIES_FULL = VALUE_RING + RING_BYTES,
    };
};

// Steps are the tiles of N keys that a tile of queries sees. The last one ends at the
// last key that any of them sees and comes first; the first one may begin before key 0. So no
// key is multiplied that no query of the tile sees.
struct Steps {
    i32 end;
    u32 n;
};

template <u32 N> DEVICE Steps steps_of(Shape p, Item at, u32 rows) {
    i64 last = least(at.first + (i64)rows, p.seq_q) - 1;
    i32 end = (i32)visible(p, last);
    return Steps{end, ((u32)end + N - 1) / N};
}

template <u32 N> DEVICE i32 key_of(Steps s, u32 i) { return s.end - (i32)((i + 1) * N); }

// Seer is the keys that the lane's two rows see, and those that all rows of its group do.
struct Seer { i32 sees[2], all; };

DEVICE Seer seer_of(Thread t, Shape p, i64 first) {
    i64 row = first + row_in_group(t);
    return Seer{{(i32)visible(p, row), (i32)visible(p, row + 8)}, (i32)visible(p, first)};
}

// sees_all says whether all rows of the group see all keys of a tile from k0 on.
template <u32 N> DEVICE bool sees_all(Seer s, i32 k0) { return k0 >= 0 && k0 + (i32)N <= s.all; }

DEVICE Span span_of(Seer s, i32 k0) { return Span{{-k0, -k0}, {s.sees[0] - k0, s.sees[1] - k0}}; }

// RowSoftmax is the state of the lane's two rows: the greatest product so far, and the
// lane's part of the sum of weights.
struct RowSoftmax { float most[2], sum[2]; };

// base_of returns what is taken off scores: −Inf − −Inf would be NaN.
DEVICE float base_of(float most, float scale2) { return most == -infinity() ? 0 : most * scale2; }

// weigh turns products into weights. rescale is what sums so far are to be multiplied
// with. scale2 is positive, so the greatest product has the greatest score.
template <u32 N>
DEVICE void weigh(RowSoftmax& state, float (&s)[N / 2], float scale2, float (&rescale)[2]) {
    UNROLL for (u32 h = 0; h < 2; h++) {
        float most = state.most[h];
        UNROLL for (u32 j = 0; j < N / 4; j++) most = quick_max(s[j / 2 * 4 + 2 * h + j % 2], most);
        most = row_max(most);
        float base = base_of(most, scale2);
        rescale[h] = quick_exp2(state.most[h] * scale2 - base);
        float sum = state.sum[h] * rescale[h];
        UNROLL for (u32 j = 0; j < N / 4; j++) {
            float& x = s[j / 2 * 4 + 2 * h + j % 2];
            x = quick_exp2(fused_mul_add(x, scale2, -base));
            sum += x;
        }
        state.most[h] = most, state.sum[h] = sum;
    }
}

// hide makes products that do not count −Inf.
template <u32 N> DEVICE void hide(Thread t, float (&s)[N / 2], Span span) {
    u32 column = acc_col(matrix_lane(t));
    UNROLL for (u32 i = 0; i < N / 2; i++)
        if (!counts(span, i / 2 % 2, i / 4 * 8 + column + i % 2)) s[i] = -infinity();
}

// forward_copies is what the copying thread does. A stage waits until it is empty, so that
// no copy writes over what is still multiplied.
template <u32 D, u32 ROWS, u32 N>
DEVICE void forward_copies(Shape p, u32 room, Item at, Steps steps, const TensorMap& q, const TensorMap& k, const TensorMap& v) {
    using R = ForwardRoom<D, ROWS, N>;
    enum : u32 { BYTES = Tile<D, N>::BYTES };
    u32 kv = (u32)(at.h / p.group), b = (u32)at.b;
    barrier_expect(room + R::QUERIES_FULL, Tile<D, ROWS>::BYTES);
    copy_tile<D, ROWS>(room + R::QUERIES, q, (i32)at.first, (u32)at.h, b, room + R::QUERIES_FULL);
    UNROLL_1 for (u32 i = 0; i < steps.n; i++) {
        u32 stage = i % STAGES * BYTES;
        i32 k0 = key_of<N>(steps, i);
        wait_empty(room + R::KEY_RING, i);
        barrier_expect(full_of(room + R::KEY_RING, i), BYTES);
        copy_tile<D, N>(room + R::KEYS + stage, k, k0, kv, b, full_of(room + R::KEY_RING, i));
        wait_empty(room + R::VALUE_RING, i);
        barrier_expect(full_of(room + R::VALUE_RING, i), BYTES);
        copy_tile<D, N>(room + R::VALUES + stage, v, k0, kv, b, full_of(room + R::VALUE_RING, i));
    }
}

// Groups begin their products in turns, so that the weights of one are computed while
// another multiplies. A turn is a named barrier, number 1 + group, of the group that waits
// for it and the one that gives it. The last group gives the first turn and not the last
// one: every turn that is given is waited for. Turns order time only; nothing relies on
// them for memory.
template <u32 GROUPS> DEVICE void await_turn(u32 group) { named_sync(1 + group, 2 * GROUP_THREADS); }
template <u32 GROUPS> DEVICE void give_turn(u32 group) { named_arrive(1 + (group + 1) % GROUPS, 2 * GROUP_THREADS); }

// forward_products is what a group that multiplies does: it leaves sums and state for its
// 64 queries. While the weights of a tile are computed, the products of the one before are
// added to sums.
template <class T, u32 D, u32 GROUPS, u32 N>
DEVICE void forward_products(Thread t, Shape p, u32 room, u32 group, Steps steps, Seer seer, float (&sums)[D / 2], RowSoftmax& state) {
    enum : u32 { ROWS = GROUPS * GROUP_ROWS };
    using R = ForwardRoom<D, ROWS, N>;
    u32 keys = room + R::KEYS, values = room + R::VALUES, key_ring = room + R::KEY_RING, value_ring = room + R::VALUE_RING;
    u32 queries = room + R::QUERIES + group * GROUP_ROWS * BOX_ROW;
    float s[N / 2], rescale[2];
    FragA<T> w[N / 16];
    barrier_wait(room + R::QUERIES_FULL, 0);
    wait_full(key_ring, 0);
    multiply_begin();
    multiply_rows<T, D, ROWS, N>(s, queries, keys);
    multiply_wait<0>();
    settled(s);
    release(t, key_ring, 0);
    if (!sees_all<N>(seer, key_of<N>(steps, 0))) hide<N>(t, s, span_of(seer, key_of<N>(steps, 0)));
    weigh<N>(state, s, p.scale2, rescale);
    pack<T, N>(w, s);
    if (group == GROUPS - 1 && steps.n > 1) give_turn<GROUPS>(group);
    UNROLL_1 for (u32 i = 1; i < steps.n; i++) {
        u32 stage = i % STAGES * Tile<D, N>::BYTES, before = (i - 1) % STAGES * Tile<D, N>::BYTES;
        wait_full(key_ring, i);
        await_turn<GROUPS>(group);
        multiply_begin();
        multiply_rows<T, D, ROWS, N>(s, queries, keys + stage);
        wait_full(value_ring, i - 1);
        multiply_begin(sums, w); // again, for ptxas does not look beyond the loop of the wait
        add_rows<T, D, N>(sums, w, values + before);
        if (group < GROUPS - 1 || i + 1 < steps.n) give_turn<GROUPS>(group);
        multiply_wait<1>();
        settled(s);
        release(t, key_ring, i);
        i32 k0 = key_of<N>(steps, i);
        if (!sees_all<N>(seer, k0)) hide<N>(t, s, span_of(seer, k0));
        weigh<N>(state, s, p.scale2, rescale);
        multiply_wait<0>();
        settled(sums);
        release(t, value_ring, i - 1);
        UNROLL for (u32 j = 0; j < D / 2; j++) sums[j] *= rescale[j / 2 % 2];
        pack<T, N>(w, s);
    }
    u32 last = steps.n - 1;
    wait_full(value_ring, last);
    multiply_begin(sums, w);
    add_rows<T, D, N>(sums, w, values + last % STAGES * Tile<D, N>::BYTES);
    multiply_wait<0>();
    settled(sums);
}

// forward_results writes out and lse, as finish in forward.h.
template <u32 D, class T>
DEVICE void forward_results(Thread t, RowSoftmax& state, float (&sums)[D / 2], float scale2, Rows<T> out, f32* lse, u32 row) {
    float factor[2];
    UNROLL for (u32 h = 0; h < 2; h++) {
        float sum = row_sum(state.sum[h]);
        factor[h] = 1 / sum;
        if (sum == 0) {
            factor[h] = 0;
            UNROLL for (u32 j = 0; j < D / 4; j++) sums[j / 2 * 4 + 2 * h + j % 2] = 0;
        }
        if (lse && acc_col(matrix_lane(t)) == 0 && row + 8 * h < out.n)
            lse[row + 8 * h] = log_sum(state.most[h] * scale2, sum);
    }
    store_rows<D>(t, sums, factor[0], factor[1], out, row);
}

// hopper_forward computes tile number t.block of GROUPS·64 queries over tiles of N keys.
template <class T, u32 D, u32 GROUPS, u32 N, int LESS, int MORE>
DEVICE void hopper_forward(Thread t, Shape p, u8* memory, const TensorMap& q, const TensorMap& k, const TensorMap& v, T* out, f32* lse) {
    enum : u32 { ROWS = GROUPS * GROUP_ROWS };
    using R = ForwardRoom<D, ROWS, N>;
    u32 room = shared_address(memory), group = group_of(t);
    if (t.local == 0) {
        barrier_init(room + R::QUERIES_FULL, 1);
        ring_init(room + R::KEY_RING, 1, GROUPS * GROUP_WARPS);
        ring_init(room + R::VALUE_RING, 1, GROUPS * GROUP_WARPS);
        barrier_init_done();
    }
    sync_threads(); // barriers are there
    Item at = query_item(p, t.block, ROWS);
    Steps steps = steps_of<N>(p, at, ROWS);
    if (group == GROUPS) {
        give_registers<LESS>();
        if (t.local == GROUPS * GROUP_THREADS && steps.n > 0) forward_copies<D, ROWS, N>(p, room, at, steps, q, k, v);
        return;
    }
    take_registers<MORE>();
    float sums[D / 2];
    clear(sums);
    RowSoftmax state = {{-infinity(), -infinity()}, {0, 0}};
    Seer seer = seer_of(t, p, at.first + group * GROUP_ROWS);
    if (steps.n > 0) forward_products<T, D, GROUPS, N>(t, p, room, group, steps, seer, sums, state);
    f32* rows = p.want_lse ? lse + row_number(p, at.b, at.h, at.first) : nullptr;
    Rows<T> to = rows_of(out, p.out, at.b, at.h, at.first, p.seq_q, ROWS, p.dim_v);
    forward_results<D>(t, state, sums, p.scale2, to, rows, group * GROUP_ROWS + row_in_group(t));
}

#define HOPPER_FORWARD(T, D, GROUPS, N, LESS, MORE)                                                                       \
    KERNEL_OF_GROUPS(attention_forward_hopper##D##_##T, (GROUPS + 1) * GROUP_THREADS, MAP(q), MAP(k), MAP(v),           \
                     OPERAND(T, out, 0), OPERAND(f32, lse, 1), PARAMS(Shape, p)) {                                      \
        ROOM_OF_LAUNCH(room);                                                                                           \
        hopper_forward<T, D, GROUPS, N, LESS, MORE>(THREAD, p, room, q, k, v, out, lse);                                \
    }
