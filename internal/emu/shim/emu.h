// What a module of kernels, compiled for the host, and the emulator agree on.
// host.cpp implements these functions; see there how threads run.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(SNUG_NAN)
#include "emu_nan.h"
#endif

struct SnugDim {
    unsigned x, y, z;
};

// SnugThread is what a thread knows of itself.
struct SnugThread {
    SnugDim local, threads, block, blocks;
    unsigned lane;
};

struct SnugPiece; // of the Metal text: where a launch begins in its grid

// SnugKernel is an entry point. call runs one thread of it.
struct SnugKernel {
    const char* name;
    unsigned threads, operands, params; // of a block; pointers; bytes
    void (*call)(const SnugKernel* k, void* const* operands, const void* params);
    void (*entry)();
    char *shared_begin, *shared_end; // where the module's block memory lies
};

enum { SNUG_SLOT = 64, SNUG_LANES = 32 }; // bytes that a lane shows the others; lanes

// Asynchronous copies that a thread has begun: group counts its commits.
struct SnugCopy {
    void* dst;
    const void* src; // null for zeros
    unsigned group;
};
enum { SNUG_COPIES = 128 };
struct SnugCopies {
    unsigned count, groups;
    SnugCopy item[SNUG_COPIES];
};

// SnugTensorMap is a tensor of 16-bit elements and the rows of the boxes that copies
// take of it: gpu.TensorMap.
struct alignas(64) SnugTensorMap {
    const uint16_t* at;
    uint64_t dims[4], strides[3]; // elements of a row, rows, heads, batches; bytes
    uint64_t rows;
    uint64_t unused[7];
};

// Products of warpgroups that a thread has begun: group counts its commits.
struct SnugProduct {
    void (*run)(const SnugProduct* p); // computes the thread's part
    float* sums;
    unsigned n; // sums
    uint64_t a, b; // descriptors
    const uint32_t* fragment; // null: a lies in block memory
    bool add;
    unsigned group;
    uint64_t digest; // of operands in block memory
};
struct SnugSums {
    float *at, value[128];
};
enum { SNUG_PRODUCTS = 96, SNUG_SUMS = 4, SNUG_GIVEN = 64 };
struct SnugProducts {
    unsigned count, groups;
    bool begun;
    unsigned given; // registers that the last begin was given
    const void* registers[SNUG_GIVEN];
    SnugProduct item[SNUG_PRODUCTS];
    SnugSums hidden[SNUG_SUMS]; // what sums were, which are NaN meanwhile
};

extern "C" {
void snug_register(const SnugKernel* k);
const SnugThread* snug_self();
SnugCopies* snug_copies();
// snug_array says that the kernel has an array of the block. At the start of a
// block its contents are undefined.
void snug_array(void* array, size_t n);
void snug_block_barrier();
void snug_warp_barrier();
// snug_exchange shows n bytes to the warp and returns the slots of all lanes,
// valid until the lane's next exchange.
const char* snug_exchange(const void* mine, size_t n);
void snug_atomic_min(unsigned* p, unsigned x);
void snug_atomic_add(unsigned* p, unsigned x);
// snug_fence orders what the thread has stored before what it stores next, for all threads of the device.
void snug_fence();
[[noreturn]] void snug_fault(const char* what);

// The block memory of the launch's size, at a multiple of 1024 bytes, undefined at the
// start of a block. snug_room_at returns n bytes of it from an offset on.
unsigned char* snug_room();
unsigned char* snug_room_at(uint32_t at, uint32_t n);
void snug_barrier_init(uint32_t at, uint32_t count);
void snug_barrier_arrive(uint32_t at, uint32_t bytes);
void snug_barrier_wait(uint32_t at, uint32_t parity);
void snug_named_barrier(uint32_t number, uint32_t threads, bool wait);
// snug_copy_box begins a copy of a box to block memory, which tells a barrier when it
// has arrived.
void snug_copy_box(uint32_t to, const SnugTensorMap* map, const int* at, uint32_t barrier);
SnugProducts* snug_products();
// snug_hide_sums hides the sums of the product that was begun last, snug_show_sums shows
// those of the first one, which snug_next_product removes.
void snug_hide_sums(SnugProducts* q);
void snug_show_sums(SnugProducts* q);
void snug_next_product(SnugProducts* q);

extern char __start_snug_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_snug_shared[] __attribute__((weak, visibility("hidden")));
}

// SHARED declares an array of the block in the dialect of the kernels.
#define SHARED(T, name, n)                                             \
    static __attribute__((section("snug_shared"))) T name[n]; \
    snug_array(name, sizeof name)

namespace snug {

template <class T> T exchange(T x, unsigned lane) {
    static_assert(sizeof(T) <= SNUG_SLOT, "too large for a slot");
    const char* slots = snug_exchange(&x, sizeof x);
    T y;
    memcpy(&y, slots + (lane % SNUG_LANES) * SNUG_SLOT, sizeof y);
    return y;
}

inline unsigned ballot(bool x) {
    const char* slots = snug_exchange(&x, 1);
    unsigned all = 0;
    for (unsigned i = 0; i < SNUG_LANES; i++) all |= (unsigned)(slots[i * SNUG_SLOT] != 0) << i;
    return all;
}

// The emulator runs grids whole, and tells kernels of Metal that every block belongs to a piece of
// at most 3×2×2 blocks, so that one which asks Metal for its block is wrong.
inline SnugDim in_piece(SnugDim block) { return {block.x % 3, block.y % 2, block.z % 2}; }
template <class P> P piece_of(const SnugThread* t) {
    SnugDim at = in_piece(t->block);
    return P{t->block.x - at.x, t->block.y - at.y, t->block.z - at.z, t->blocks.x, t->blocks.y, t->blocks.z};
}
template <class T> constexpr bool is_piece() { return std::is_same<T, const SnugPiece&>::value; }

// Caller calls an entry point whose parameters are tensor maps, pointers, a struct and
// then Extra values that say where the thread is.
template <class F> struct Caller;
template <class A> constexpr bool is_operand() { return std::is_pointer<A>::value || std::is_same<A, const SnugTensorMap&>::value; }
template <class... A> struct Caller<void (*)(A...)> {
    template <size_t... I>
    static void call(void (*f)(A...), void* const* operands, const void* params, std::index_sequence<I...>) {
        f(argument<A, I>(operands, params)...);
    }
    static constexpr bool pieces = (false || ... || is_piece<A>());
    static constexpr size_t pointers = (0 + ... + (is_operand<A>() ? 1 : 0));
    static constexpr size_t param_bytes() {
        size_t bytes[] = {param_size<A>()...};
        size_t sum = 0;
        for (size_t b : bytes) sum += b;
        return sum;
    }
    template <class T> static constexpr size_t param_size() {
        if constexpr (is_operand<T>() || std::is_same<T, SnugDim>::value || is_piece<T>()) return 0;
        else return sizeof(T);
    }
    template <class T, size_t I> static std::conditional_t<is_piece<T>(), std::decay_t<T>, T> argument(void* const* operands, const void* params) {
        if constexpr (std::is_pointer<T>::value) {
            return reinterpret_cast<T>(operands[I]);
        } else if constexpr (is_operand<T>()) {
            return *static_cast<const SnugTensorMap*>(operands[I]);
        } else if constexpr (std::is_same<T, SnugDim>::value) {
            const SnugThread* t = snug_self();
            const SnugDim at[] = {t->local, t->threads, pieces ? in_piece(t->block) : t->block, t->blocks};
            return at[I - pointers - 1];
        } else if constexpr (is_piece<T>()) {
            return piece_of<std::decay_t<T>>(snug_self());
        } else {
            return *reinterpret_cast<const std::remove_reference_t<T>*>(params);
        }
    }
};

template <class... A> struct Entry {
    static void call(const SnugKernel* k, void* const* operands, const void* params) {
        using C = Caller<void (*)(A...)>;
        C::call(reinterpret_cast<void (*)(A...)>(k->entry), operands, params, std::index_sequence_for<A...>{});
    }
};

struct Registrar {
    SnugKernel k;
    template <class... A> Registrar(const char* name, unsigned threads, void (*entry)(A...)) {
        using C = Caller<void (*)(A...)>;
        k = SnugKernel{name, threads, (unsigned)C::pointers, (unsigned)C::param_bytes(), Entry<A...>::call,
                       reinterpret_cast<void (*)()>(entry), __start_snug_shared, __stop_snug_shared};
        snug_register(&k);
    }
};

} // namespace snug

// SNUG_LINKAGE is how the language declares its entry points.
#define SNUG_REGISTER(name, threads, ...) \
    SNUG_LINKAGE void name(__VA_ARGS__);  \
    static snug::Registrar snug_register_##name(#name, threads, &name);
