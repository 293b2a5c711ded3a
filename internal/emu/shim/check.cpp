// What the emulator checks of modules compiled with -fsanitize=thread: the
// compiler then calls a function before every access to memory. These are ours,
// not the sanitizer's. They find accesses outside of every allocation, block
// memory read before it is written, and two accesses to one byte, one of them a
// write, that no barrier orders: within a block by the rules of its barriers and
// warps, between blocks of a launch always.

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "host.h"

namespace {

// Readers is who has read a byte since it was written: nobody, one thread (its
// number), several lanes of one warp (its number), or several warps.
enum Readers : uint16_t { NOBODY, ONE, LANES, WARPS };

// Cell is what is known of a byte. Everything in it but `written` counts only in
// the launch and the block that it names.
struct Cell {
    uint32_t write_launch, write_block, read_launch, read_block;
    uint16_t writer, write_barriers, write_exchanges;
    uint16_t reader, read_barriers, read_exchanges;
    Readers readers;
    bool written;
};

uint32_t launches, blocks; // counted over the whole run, so that old cells expire
char *shared_begin, *shared_end;
std::vector<Cell> shared;
std::unordered_map<uintptr_t, Cell*> pages; // of device memory

enum { PAGE = 4096 };

uintptr_t last_number; // of the page that was looked up last
Cell* last_page;

Cell* cell_of(uintptr_t at) {
    if (!last_page || at / PAGE != last_number) {
        Cell*& page = pages[at / PAGE];
        if (!page) page = (Cell*)calloc(PAGE, sizeof(Cell));
        last_page = page;
        last_number = at / PAGE;
    }
    return last_page + at % PAGE;
}

bool same_warp(unsigned a, unsigned b) { return a / SNUG_LANES == b / SNUG_LANES; }

// unordered says whether an access by thread `other` in this block may happen
// at the same time as one now.
bool unordered(unsigned other, unsigned barriers, unsigned exchanges, const Moment& m) {
    if (other == m.thread || barriers != (uint16_t)m.barriers) return false;
    return !same_warp(other, m.thread) || exchanges == (uint16_t)m.exchanges;
}

// Every block has block memory of its own, so there other blocks do not count.

const char* conflict_with_write(const Cell& c, const Moment& m, bool in_shared) {
    if (c.write_launch != launches) return nullptr;
    if (c.write_block != blocks) return in_shared ? nullptr : "another block of the launch writes it";
    if (unordered(c.writer, c.write_barriers, c.write_exchanges, m)) return "another thread writes it, with no barrier between";
    return nullptr;
}

const char* conflict_with_reads(const Cell& c, const Moment& m, bool in_shared) {
    if (c.readers == NOBODY || c.read_launch != launches) return nullptr;
    if (c.read_block != blocks) return in_shared ? nullptr : "another block of the launch reads it";
    const char* text = "another thread reads it, with no barrier between";
    bool race = c.read_barriers == (uint16_t)m.barriers;
    switch (c.readers) {
    case ONE: race = unordered(c.reader, c.read_barriers, c.read_exchanges, m); break;
    case LANES: race = race && (c.reader != m.thread / SNUG_LANES || c.read_exchanges == (uint16_t)m.exchanges); break;
    default: break;
    }
    return race ? text : nullptr;
}

void note_read(Cell& c, const Moment& m) {
    bool together = c.readers != NOBODY && c.read_launch == launches && c.read_block == blocks && c.read_barriers == (uint16_t)m.barriers;
    Readers readers = ONE;
    if (together) {
        unsigned warp = c.readers == LANES ? c.reader : c.reader / SNUG_LANES;
        if (c.readers == WARPS || warp != m.thread / SNUG_LANES) readers = WARPS;
        else if (c.read_exchanges == (uint16_t)m.exchanges && !(c.readers == ONE && c.reader == m.thread)) readers = LANES;
    }
    c.readers = readers;
    c.reader = (uint16_t)(readers == LANES ? m.thread / SNUG_LANES : m.thread);
    c.read_launch = launches, c.read_block = blocks;
    c.read_barriers = (uint16_t)m.barriers, c.read_exchanges = (uint16_t)m.exchanges;
}

void note_write(Cell& c, const Moment& m) {
    c.write_launch = launches, c.write_block = blocks;
    c.writer = (uint16_t)m.thread;
    c.write_barriers = (uint16_t)m.barriers, c.write_exchanges = (uint16_t)m.exchanges;
    c.readers = NOBODY;
    c.written = true;
}

void report(const char* what, bool write, uintptr_t at, size_t n, void* pc) {
    char text[800];
    Dl_info module = {};
    dladdr(pc, &module);
    snprintf(text, sizeof text, "%s of %zu bytes at %#zx: %s (code %s %#zx)", write ? "write" : "read", n, (size_t)at, what,
             module.dli_fname, (size_t)((char*)pc - (char*)module.dli_fbase));
    snug_fault(text);
}

void access(void* address, size_t n, bool write, void* pc) {
    Moment m;
    if (!now(&m)) return;
    uintptr_t at = (uintptr_t)address;
    bool in_shared = at >= (uintptr_t)shared_begin && at < (uintptr_t)shared_end;
    if (!in_shared) {
        if (on_stack(at) || in_module(at)) return;
        if (!allocated(at, n)) return report("outside of every allocation", write, at, n, pc);
    } else if (at + n > (uintptr_t)shared_end) {
        return report("beyond the block's memory", write, at, n, pc);
    }
    for (uintptr_t i = at; i < at + n; i++) {
        Cell& c = in_shared ? shared[i - (uintptr_t)shared_begin] : *cell_of(i);
        const char* what = conflict_with_write(c, m, in_shared);
        if (in_shared && (!c.written || c.write_block != blocks) && !write && !what) what = "nobody has written it";
        if (write && !what) what = conflict_with_reads(c, m, in_shared);
        if (what) return report(what, write, at, n, pc);
        if (write) note_write(c, m);
        else note_read(c, m);
    }
}

} // namespace

void begin_launch() { launches++; }

void begin_block(char* begin, char* end) {
    blocks++;
    shared_begin = begin, shared_end = end;
    if (shared.size() < (size_t)(end - begin)) shared.resize((size_t)(end - begin));
}

void forget(uintptr_t at, size_t n) {
    last_page = nullptr;
    for (uintptr_t p = at / PAGE; p <= (at + n) / PAGE; p++) {
        auto it = pages.find(p);
        if (it == pages.end()) continue;
        free(it->second);
        pages.erase(it);
    }
}

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}

#define ACCESSES(n)                                                                                    \
    void __tsan_read##n(void* p) { access(p, n, false, __builtin_return_address(0)); }                 \
    void __tsan_write##n(void* p) { access(p, n, true, __builtin_return_address(0)); }                 \
    void __tsan_unaligned_read##n(void* p) { access(p, n, false, __builtin_return_address(0)); }       \
    void __tsan_unaligned_write##n(void* p) { access(p, n, true, __builtin_return_address(0)); }
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

void __tsan_read_range(void* p, unsigned long n) { access(p, n, false, __builtin_return_address(0)); }
void __tsan_write_range(void* p, unsigned long n) { access(p, n, true, __builtin_return_address(0)); }
}
