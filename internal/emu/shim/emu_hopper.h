// The instructions of compute capability 9.0 that kernels use, as the PTX manual
// defines them, as unkind as it allows: a copy arrives when nothing else can go on, or in
// some blocks at any time, and an arrival at a barrier lets others run first. A product is
// computed when its thread waits for it. Until then its results are NaN, and its operands in
// block memory must not change. hopper.cpp has what threads share.
#pragma once
#include "emu.h"

// TensorMap is what host.cpp makes of a gpu.TensorMap, in place of the driver's.
typedef SnugTensorMap TensorMap;

#define MAP(name) const TensorMap& name
#define KERNEL_OF_GROUPS(name, threads, ...) \
    SNUG_REGISTER(name, threads, __VA_ARGS__) \
    extern "C" void name(__VA_ARGS__)
#define ROOM_OF_LAUNCH(name) unsigned char* name = snug_room()

inline u32 shared_address(const void* p) { return (u32)((const unsigned char*)p - snug_room()); }

inline void barrier_init(u32 b, u32 count) { snug_barrier_init(b, count); }
inline void barrier_init_done() {}
inline void barrier_expect(u32 b, u32 bytes) { snug_barrier_arrive(b, bytes); }
inline void barrier_arrive(u32 b) { snug_barrier_arrive(b, 0); }
inline void barrier_wait(u32 b, u32 parity) { snug_barrier_wait(b, parity); }
inline void copy_box(u32 to, const TensorMap& map, i32 column, i32 row, i32 head, i32 batch, u32 b) {
    const int at[4] = {column, row, head, batch};
    snug_copy_box(to, &map, at, b);
}
inline void named_sync(u32 number, u32 threads) { snug_named_barrier(number, threads, true); }
inline void named_arrive(u32 number, u32 threads) { snug_named_barrier(number, threads, false); }
template <int n> void give_registers() {}
template <int n> void take_registers() {}
inline float quick_max(float a, float b) { return a > b || b != b ? a : b; }

// ---- products

// snug_element returns the 16 bits of an operand at row `row`, term k. A swizzled
// operand by rows has groups of 8 rows, a stride offset apart, of 128 bytes, in which
// terms are neighbours; by columns its terms are such rows, and 64 of the operand's
// rows, neighbours in them, are a leading offset from the next 64.
inline u16 snug_element(uint64_t desc, bool columns, unsigned row, unsigned k) {
    u32 at = (u32)(desc & 0x3fff) << 4, leading = (u32)(desc >> 16 & 0x3fff) << 4, stride = (u32)(desc >> 32 & 0x3fff) << 4;
    if (columns) at += row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2;
    else at += row / 8 * stride + row % 8 * 128 + k * 2;
    at ^= (at >> 7 & 7) << 4;
    u16 x;
    memcpy(&x, snug_room_at(at, 2), 2);
    return x;
}

// snug_digest is a number of an operand's contents.
inline uint64_t snug_digest(uint64_t desc, bool columns, unsigned rows) {
    uint64_t h = 1469598103934665603u;
    for (unsigned r = 0; r < rows; r++)
        for (unsigned k = 0; k < 16; k++) h = (h ^ snug_element(desc, columns, r, k)) * 1099511628211u;
    return h;
}

template <unsigned N> uint64_t snug_digests(const SnugProduct* p) {
    if (snug_self()->lane != 0) return 0;
    return snug_digest(p->b, p->fragment != nullptr, N) ^ (p->fragment ? 0 : snug_digest(p->a, false, 64));
}

// snug_multiply computes the thread's part of a product. A fragment has the layout of
// mma.m16n8k16, see snug_mma, for each of the four warps' 16 rows.
template <class T, unsigned N> void snug_multiply(const SnugProduct* p) {
    if (snug_digests<N>(p) != p->digest) snug_fault("an operand of a product changed before the wait for it");
    unsigned lane = snug_self()->lane, warp = snug_self()->local.x / SNUG_LANES % 4;
    float a[2][16];
    const char* slots = p->fragment ? snug_exchange(p->fragment, 16) : nullptr;
    for (unsigned h = 0; h < 2; h++)
        for (unsigned k = 0; k < 16; k++) {
            u16 bits;
            if (slots) memcpy(&bits, slots + (lane / 4 * 4 + k % 8 / 2) * SNUG_SLOT + 4 * (h + k / 8 * 2) + k % 2 * 2, 2);
            else bits = snug_element(p->a, false, 16 * warp + lane / 4 + 8 * h, k);
            a[h][k] = widen(T{bits});
        }
    for (unsigned j = 0; j < N / 8; j++)
        for (unsigned e = 0; e < 2; e++)
            for (unsigned k = 0; k < 16; k++) {
                float b = widen(T{snug_element(p->b, slots != nullptr, 8 * j + lane % 4 * 2 + e, k)});
                for (unsigned h = 0; h < 2; h++) {
                    float& c = p->sums[4 * j + 2 * h + e];
                    c = __builtin_fmaf(a[h][k], b, k == 0 && !p->add ? 0 : c);
                }
            }
}

inline void snug_give(SnugProducts* q, const void* registers) {
    if (q->given == SNUG_GIVEN) snug_fault("more registers of products than the emulator holds");
    q->registers[q->given++] = registers;
}
template <u32 N> void snug_ready(SnugProducts* q, float (&c)[N]) { snug_give(q, c); }
template <class T, u32 N> void snug_ready(SnugProducts* q, FragA<T> (&a)[N]) {
    for (FragA<T>& x : a) snug_give(q, x.x);
}
template <class... X> void multiply_begin(X&... x) {
    SnugProducts* q = snug_products();
    q->begun = true;
    q->given = 0;
    (snug_ready(q, x), ...);
}
// snug_given says whether the compiler is kept from computing registers after the begin: it was
// given them, or a product on them is under way.
inline bool snug_given(const SnugProducts* q, const void* registers) {
    for (unsigned i = 0; i < q->given; i++)
        if (q->registers[i] == registers) return true;
    for (unsigned i = 0; i < q->count; i++)
        if (q->item[i].sums == registers) return true;
    return false;
}
inline void multiply_commit() { snug_products()->groups++; }

template <class T, unsigned N> void snug_issue(float* c, uint64_t a, const u32* fragment, uint64_t b, bool add) {
    SnugProducts* q = snug_products();
    if (!q->begun) snug_fault("a product without multiply_begin after the last wait");
    for (uint64_t desc : {fragment ? b : a, b})
        if (desc >> 62 != 1 || (desc & 0x38)) snug_fault("an operand that does not start in the first row of the 8 of a permutation");
    if ((fragment && !snug_given(q, fragment)) || (add && !snug_given(q, c))) snug_fault("registers of a product that multiply_begin was not given");
    if (q->count == SNUG_PRODUCTS) snug_fault("more products under way than the emulator holds");
    SnugProduct& p = q->item[q->count++];
    p = SnugProduct{snug_multiply<T, N>, c, N / 2, a, b, fragment, add, q->groups, 0};
    p.digest = snug_digests<N>(&p);
    snug_hide_sums(q);
}
template <class T, u32 N> void multiply_shared(float (&c)[N / 2], u64 a, u64 b, u32 add) { snug_issue<T, N>(c, a, nullptr, b, add != 0); }
template <class T, u32 N> void multiply_registers(float (&c)[N / 2], const FragA<T>& a, u64 b) { snug_issue<T, N>(c, 0, a.x, b, true); }

template <int n> void multiply_wait() {
    SnugProducts* q = snug_products();
    q->begun = false;
    while (q->count > 0 && q->item[0].group + n < q->groups) {
        SnugProduct p = q->item[0];
        snug_show_sums(q);
        p.run(&p);
        snug_next_product(q);
    }
}
template <u32 N> void settled(float (&)[N]) {}
