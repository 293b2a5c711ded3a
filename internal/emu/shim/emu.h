// What a module of kernels, compiled for the host, and the emulator agree on.
// host.cpp implements these functions; see there how threads run.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

struct SnugDim {
    unsigned x, y, z;
};

// SnugThread is what a thread knows of itself.
struct SnugThread {
    SnugDim local, threads, block, blocks;
    unsigned lane;
};

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
[[noreturn]] void snug_fault(const char* what);

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

// Caller calls an entry point whose parameters are pointers, a struct and then
// Extra values that say where the thread is.
template <class F> struct Caller;
template <class... A> struct Caller<void (*)(A...)> {
    template <size_t... I>
    static void call(void (*f)(A...), void* const* operands, const void* params, std::index_sequence<I...>) {
        f(argument<A, I>(operands, params)...);
    }
    static constexpr size_t pointers = (0 + ... + (std::is_pointer<A>::value ? 1 : 0));
    static constexpr size_t param_bytes() {
        size_t bytes[] = {(std::is_pointer<A>::value || std::is_same<A, SnugDim>::value) ? 0 : sizeof(A)...};
        size_t sum = 0;
        for (size_t b : bytes) sum += b;
        return sum;
    }
    template <class T, size_t I> static T argument(void* const* operands, const void* params) {
        if constexpr (std::is_pointer<T>::value) {
            return reinterpret_cast<T>(operands[I]);
        } else if constexpr (std::is_same<T, SnugDim>::value) {
            const SnugThread* t = snug_self();
            const SnugDim at[] = {t->local, t->threads, t->block, t->blocks};
            return at[I - pointers - 1];
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
