// One launch that goes over many vectors, whose addresses are in its parameters. Metal has no such kernels, for it binds
// buffers: there every vector has a launch of its own.
#pragma once

#if defined(SNUG_CUDA)

// at_address returns where a vector of device memory begins.
template <class T> DEVICE GLOBAL T* at_address(u64 address) {
#if defined(__HIP__) && !defined(SNUG_EMU)
    return (T*)(__attribute__((address_space(1))) T*)address;
#else
    T* p = (T*)address;
#if defined(__CUDA_ARCH__) && !defined(SNUG_EMU)
    __builtin_assume(__isGlobal(p));
#endif
    return p;
#endif
}

DEVICE u32 is_wide(u64 a, u64 b) { return (a | b) % 16 == 0; }

// item_of returns which of p.count items a block serves: items[i].first is the first block of item i, 0 for the first.
template <class P> DEVICE u32 item_of(u32 block, PRIVATE const P& p) {
    u32 lo = 0, hi = p.count;
    while (hi - lo > 1) {
        u32 mid = (lo + hi) / 2;
        if (p.items[mid].first <= block) lo = mid;
        else hi = mid;
    }
    return lo;
}

// of_item returns where the thread is among the blocks of its item.
template <class P> DEVICE Thread of_item(Thread t, u32 item, PRIVATE const P& p) {
    u32 first = p.items[item].first, end = item + 1 < p.count ? p.items[item + 1].first : t.blocks;
    t.block -= first;
    t.blocks = end - first;
    return t;
}

#endif
