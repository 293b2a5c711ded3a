// The emulator: a process that holds the memory of a device and runs kernels
// compiled for the host. It reads commands from its input in order and answers
// on its output; internal/emu is the other end.
//
// A block runs at a time. Each of its threads has a stack of its own and runs
// until it reaches a barrier or ends; warps run in order, and within a warp the
// lanes. So the threads of a launch run in one order, always; a seed gives another.

#include "host.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

std::string first_error;

void set_error(const std::string& text) {
    if (first_error.empty()) first_error = text;
}

// ---- the pipe

static void read_all(void* p, size_t n) {
    for (char* c = (char*)p; n > 0;) {
        ssize_t got = read(0, c, n);
        if (got <= 0) _exit(0); // the other end is gone
        c += got, n -= (size_t)got;
    }
}

static void write_all(const void* p, size_t n) {
    for (const char* c = (const char*)p; n > 0;) {
        ssize_t put = write(1, c, n);
        if (put <= 0) _exit(0);
        c += put, n -= (size_t)put;
    }
}

template <class T> static T take() {
    T x;
    read_all(&x, sizeof x);
    return x;
}

static std::string take_text() {
    std::string s(take<uint32_t>(), 0);
    read_all(&s[0], s.size());
    return s;
}

static void reply() {
    uint32_t n = (uint32_t)first_error.size();
    write_all(&n, sizeof n);
    write_all(first_error.data(), n);
    first_error.clear();
}

// ---- memory

static std::map<uintptr_t, size_t> blocks; // address to size

bool allocation(uintptr_t at, uintptr_t* low, uintptr_t* high) {
    auto b = blocks.upper_bound(at);
    if (b == blocks.begin()) return false;
    --b;
    *low = b->first, *high = b->first + b->second;
    return at <= *high;
}

bool allocated(uintptr_t at, size_t n) {
    uintptr_t low, high;
    return allocation(at, &low, &high) && n <= high - at;
}

static bool check_range(const char* what, uintptr_t at, size_t n) {
    if (allocated(at, n)) return true;
    char text[160];
    snprintf(text, sizeof text, "%s: %zu bytes at %#zx are not one allocation", what, n, (size_t)at);
    set_error(text);
    return false;
}

static void alloc() {
    size_t n = take<uint64_t>();
    uint64_t at = (uint64_t)(uintptr_t)calloc(1, n);
    if (at) blocks[(uintptr_t)at] = n;
    write_all(&at, sizeof at);
}

static void release() {
    uintptr_t at = (uintptr_t)take<uint64_t>();
    auto b = blocks.find(at);
    if (b == blocks.end()) return set_error("free of what was not allocated");
    forget(at, b->second);
    blocks.erase(b);
    free((void*)at);
}

static void copy_in() {
    uintptr_t at = (uintptr_t)take<uint64_t>();
    size_t n = take<uint64_t>();
    if (check_range("copy in", at, n)) return read_all((void*)at, n);
    std::vector<char> rest(n);
    read_all(rest.data(), n);
}

static void copy_out() {
    uintptr_t at = (uintptr_t)take<uint64_t>();
    size_t n = take<uint64_t>();
    check_range("copy out", at, n);
    bool ok = first_error.empty();
    reply();
    if (ok) write_all((void*)at, n);
}

static void copy() {
    uintptr_t to = (uintptr_t)take<uint64_t>(), from = (uintptr_t)take<uint64_t>();
    size_t n = take<uint64_t>();
    if (check_range("copy to", to, n) && check_range("copy from", from, n)) memmove((void*)to, (void*)from, n);
}

// ---- kernels

static std::map<std::string, const SnugKernel*> kernels;

extern "C" void snug_register(const SnugKernel* k) { kernels[k->name] = k; }

extern "C" uint32_t snug_nan;
uint32_t snug_nan;

static void load() {
    std::string path = take_text();
    if (!dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) set_error(dlerror());
    find_images();
    reply();
}

// take_map takes a tensor map and checks it as the driver does.
static SnugTensorMap take_map() {
    SnugTensorMap m = {};
    m.at = (const uint16_t*)(uintptr_t)take<uint64_t>();
    for (uint64_t& d : m.dims) d = take<uint64_t>();
    for (uint64_t& s : m.strides) s = take<uint64_t>();
    m.rows = take<uint64_t>();
    bool fits = (uintptr_t)m.at % 16 == 0 && m.rows >= 1 && m.rows <= 256;
    size_t last = 2 * m.dims[0]; // bytes from the first to the last element
    for (int i = 0; i < 4; i++) fits = fits && m.dims[i] >= 1 && m.dims[i] <= (uint64_t)1 << 32;
    for (int i = 0; i < 3; i++) {
        fits = fits && m.strides[i] % 16 == 0 && m.strides[i] < (uint64_t)1 << 40;
        last += (m.dims[i + 1] - 1) * m.strides[i];
    }
    if (!fits) set_error("a tensor map whose address, sizes or strides the driver refuses");
    else check_range("tensor map", (uintptr_t)m.at, last);
    return m;
}

static void launch() {
    Launch l;
    std::string name = take_text();
    l.blocks.x = take<uint32_t>(), l.blocks.y = take<uint32_t>(), l.blocks.z = take<uint32_t>();
    l.threads = take<uint32_t>();
    l.operands.resize(take<uint32_t>());
    for (void*& p : l.operands) p = (void*)(uintptr_t)take<uint64_t>();
    l.params = take_text();
    l.room = take<uint32_t>();
    l.maps.resize(take<uint32_t>());
    for (SnugTensorMap& m : l.maps) m = take_map();
    for (size_t i = l.maps.size(); i-- > 0;) l.operands.insert(l.operands.begin(), &l.maps[i]);
    auto k = kernels.find(name);
    char text[200];
    if (k == kernels.end()) {
        return set_error("no kernel " + name);
    }
    l.kernel = k->second;
    if (l.kernel->operands != l.operands.size() || l.kernel->params != l.params.size()) {
        snprintf(text, sizeof text, "kernel %s takes %u operands and %u bytes of parameters, not %zu and %zu", name.c_str(),
                 l.kernel->operands, l.kernel->params, l.operands.size(), l.params.size());
        return set_error(text);
    }
    if (l.kernel->threads != l.threads || l.threads % SNUG_LANES || l.threads > MAX_THREADS) {
        snprintf(text, sizeof text, "kernel %s has blocks of %u threads, not %u", name.c_str(), l.kernel->threads, l.threads);
        return set_error(text);
    }
    if (l.blocks.x == 0 || l.blocks.y == 0 || l.blocks.z == 0 || l.blocks.y > 65535 || l.blocks.z > 65535) {
        snprintf(text, sizeof text, "kernel %s: %u×%u×%u blocks", name.c_str(), l.blocks.x, l.blocks.y, l.blocks.z);
        return set_error(text);
    }
    if (l.room > MAX_ROOM) return set_error("a launch with more than 227 KiB of block memory");
    if (first_error.empty()) run(l);
}

// flush_subnormals makes float arithmetic read and write 0 in place of subnormal numbers, as
// Apple's GPUs do in every mode of their compiler.
static void flush_subnormals() {
#if defined(__x86_64__)
    unsigned mode = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(mode | 1u << 15 | 1u << 6); // results, operands
#elif defined(__aarch64__)
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    asm volatile("msr fpcr, %0" ::"r"(mode | 1u << 24));
#endif
}

int main(int count, char** arguments) {
    for (int i = 1; i < count; i++) {
        if (!strcmp(arguments[i], "flush")) flush_subnormals();
        else if (!strcmp(arguments[i], "late")) late = true;
        else if (!strncmp(arguments[i], "nan=", 4)) snug_nan = (uint32_t)strtoul(arguments[i] + 4, nullptr, 16);
        else set_order(strtoull(arguments[i], nullptr, 10));
    }
    for (;;) {
        switch (take<uint32_t>()) {
        case 1: load(); break;
        case 2: alloc(); break;
        case 3: release(); break;
        case 4: copy_in(); break;
        case 5: copy_out(); break;
        case 6: copy(); break;
        case 7: launch(); break;
        case 8: reply(); break;
        default: fprintf(stderr, "emulator: unknown command\n"); return 1;
        }
    }
}
