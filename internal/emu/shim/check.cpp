// What the emulator checks of modules compiled with -fsanitize=thread: the
// compiler then calls a function before every access to memory. These are ours,
// not the sanitizer's. They find accesses outside of every allocation, block
// memory read before it is written, and two accesses to one byte, one of them a
// write, that no barrier orders: within a block by the rules of its barriers and
// warps, between blocks of a launch always.

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unordered_map>

#include "host.h"

namespace {

// Readers is who has read a piece since it was written: nobody, one thread (its
// number), several lanes of one warp (its number), or several warps.
enum Readers : uint16_t { NOBODY, ONE, LANES, WARPS };

// Cell is what is known of a piece of memory: who wrote it and who reads it. It counts only
// in the launch and the block that it names.
struct Cell {
    uint32_t write_block, read_block; // 0 for none
    uint16_t writer, write_barriers, write_exchanges;
    uint16_t reader, read_barriers, read_met; // a lane has read before it meets the others, even if only to exchange
    Readers readers;
};

// Word is what is known of four bytes: of all together, of each half or of each byte,
// as accesses need it.
struct Word {
    Cell cell[4];
    uint8_t pieces; // 1, 2 or 4; 0 before the first access, as 1
};

uint32_t first_block, block; // of the launch, and now, counted from 1 over the whole run, so that old cells expire
uintptr_t shared_begin, shared_end;
std::vector<Word> shared;
std::unordered_map<uintptr_t, Word*> pages; // of device memory

enum { PAGE = 4096, WORD = 4 };

// Near is a page that was used not long ago, and an allocation that lies in it in part at least.
struct Near {
    uintptr_t number, low, high;
    Word* words;
};
enum { NEAR = 64 };
Near near[NEAR];

// near_to finds the page and the allocation of n bytes, and returns null if they are not one allocation's.
const Near* near_to(uintptr_t at, size_t n) {
    Near& p = near[at / PAGE % NEAR];
    if (p.words && p.number == at / PAGE && at >= p.low && at + n <= p.high) return &p;
    if (!allocation(at, &p.low, &p.high) || n > p.high - at) {
        p.words = nullptr;
        return nullptr;
    }
    Word*& page = pages[at / PAGE];
    if (!page) page = (Word*)calloc(PAGE / WORD, sizeof(Word));
    p.number = at / PAGE, p.words = page;
    return &p;
}

Image last_image; // whose constants were read last

bool same_warp(unsigned a, unsigned b) { return a / SNUG_LANES == b / SNUG_LANES; }

// unordered says whether an access by thread `other` in this block may happen
// at the same time as one now. met counts what orders them within a warp.
bool unordered(unsigned other, unsigned barriers, unsigned met, unsigned met_now, const Moment& m) {
    if (other == m.thread || barriers != (uint16_t)m.barriers) return false;
    return !same_warp(other, m.thread) || met == (uint16_t)met_now;
}

// Every block has block memory of its own, so there other blocks do not count.

const char* conflict_with_write(const Cell& c, const Moment& m, bool in_shared) {
    if (c.write_block < first_block) return nullptr;
    if (c.write_block != block) return in_shared ? nullptr : "another block of the launch writes it";
    if (unordered(c.writer, c.write_barriers, c.write_exchanges, m.exchanges, m)) return "another thread writes it, with no barrier between";
    return nullptr;
}

const char* conflict_with_reads(const Cell& c, const Moment& m, bool in_shared) {
    if (c.readers == NOBODY || c.read_block < first_block) return nullptr;
    if (c.read_block != block) return in_shared ? nullptr : "another block of the launch reads it";
    const char* text = "another thread reads it, with no barrier between";
    bool race = c.read_barriers == (uint16_t)m.barriers;
    switch (c.readers) {
    case ONE: race = unordered(c.reader, c.read_barriers, c.read_met, m.met, m); break;
    case LANES: race = race && (c.reader != m.thread / SNUG_LANES || c.read_met == (uint16_t)m.met); break;
    default: break;
    }
    return race ? text : nullptr;
}

void note_read(Cell& c, const Moment& m) {
    bool together = c.readers != NOBODY && c.read_block == block && c.read_barriers == (uint16_t)m.barriers;
    Readers readers = ONE;
    if (together) {
        unsigned warp = c.readers == LANES ? c.reader : c.reader / SNUG_LANES;
        if (c.readers == WARPS || warp != m.thread / SNUG_LANES) readers = WARPS;
        else if (c.read_met == (uint16_t)m.met && !(c.readers == ONE && c.reader == m.thread)) readers = LANES;
    }
    c.readers = readers;
    c.reader = (uint16_t)(readers == LANES ? m.thread / SNUG_LANES : m.thread);
    c.read_block = block;
    c.read_barriers = (uint16_t)m.barriers, c.read_met = (uint16_t)m.met;
}

// noted says whether note_read would change nothing. Then the write before is ordered before
// this read too: it is for the readers so far, of whom it can have been one at most.
bool noted(const Cell& c, const Moment& m) {
    if (c.readers == NOBODY || c.read_block != block || c.read_barriers != (uint16_t)m.barriers) return false;
    if (c.readers == WARPS) return true;
    return c.read_met == (uint16_t)m.met && c.reader == (c.readers == ONE ? m.thread : m.thread / SNUG_LANES);
}

void note_write(Cell& c, const Moment& m) {
    c.write_block = block;
    c.writer = (uint16_t)m.thread;
    c.write_barriers = (uint16_t)m.barriers, c.write_exchanges = (uint16_t)m.exchanges;
    c.readers = NOBODY;
}

void report(const char* what, bool write, uintptr_t at, size_t n, void* pc) {
    char text[800];
    Dl_info module = {};
    dladdr(pc, &module);
    snprintf(text, sizeof text, "%s of %zu bytes at %#zx: %s (code %s %#zx)", write ? "write" : "read", n, (size_t)at, what,
             module.dli_fname, (size_t)((char*)pc - (char*)module.dli_fbase));
    snug_fault(text);
}

// split makes the cells of a word as small as pieces says.
void split(Word& w, unsigned pieces) {
    for (; w.pieces < pieces; w.pieces *= 2)
        for (unsigned i = w.pieces; i-- > 0;) w.cell[2 * i] = w.cell[2 * i + 1] = w.cell[i];
}

// access_word is an access to n bytes of a word from an offset on. It returns what is wrong with it.
const char* access_word(Word& w, unsigned offset, unsigned n, bool write, bool in_shared, const Moment& m) {
    unsigned pieces = n == WORD ? 1 : (offset | n) % 2 == 0 ? 2 : 4;
    if (w.pieces == 0) w.pieces = 1;
    split(w, pieces);
    if (write && n == WORD && w.pieces > 1) { // all bytes become alike
        for (unsigned i = 0; i < w.pieces; i++) {
            if (const char* what = conflict_with_write(w.cell[i], m, in_shared)) return what;
            if (const char* what = conflict_with_reads(w.cell[i], m, in_shared)) return what;
        }
        w.pieces = 1;
        note_write(w.cell[0], m);
        return nullptr;
    }
    unsigned size = WORD / w.pieces;
    for (unsigned i = offset / size; i < (offset + n) / size; i++) {
        Cell& c = w.cell[i];
        if (!write && noted(c, m)) continue;
        const char* what = conflict_with_write(c, m, in_shared);
        if (write) {
            if (!what) what = conflict_with_reads(c, m, in_shared);
        } else if (in_shared && c.write_block != block && !what) {
            what = "nobody has written it";
        }
        if (what) return what;
        if (write) note_write(c, m);
        else note_read(c, m);
    }
    return nullptr;
}

void access(void* address, size_t n, bool write, void* pc) {
    const Moment& m = here;
    if (m.thread == NOWHERE) return;
    uintptr_t at = (uintptr_t)address;
    if (at - m.stack < STACK) return;
    if (late) {
        if (write) late_store((char*)address, n);
        return;
    }
    bool in_shared = at >= shared_begin && at < shared_end;
    Word* words = nullptr; // of the page
    if (in_shared) {
        if (at + n > shared_end) return report("beyond the block's memory", write, at, n, pc);
    } else if (last_image.has(at)) {
        return;
    } else if (const Near* p = near_to(at, n)) {
        words = p->words;
    } else {
        if (const Image* image = image_of(at)) {
            last_image = *image;
            return;
        }
        return report("outside of every allocation", write, at, n, pc);
    }
    for (uintptr_t end = at + n; at < end;) {
        unsigned offset = at % WORD, part = (unsigned)std::min<uintptr_t>(WORD - offset, end - at);
        Word& w = in_shared ? shared[at / WORD - shared_begin / WORD] : words[at % PAGE / WORD];
        if (const char* what = access_word(w, offset, part, write, in_shared, m)) return report(what, write, (uintptr_t)address, n, pc);
        at += part;
        if (!in_shared && at < end && at % PAGE == 0) words = near_to(at, end - at)->words;
    }
}

} // namespace

void begin_launch() {
    first_block = block + 1;
    for (Near& p : near) p.words = nullptr; // allocations and modules change between launches
    last_image = Image{0, 0};
}

void begin_block(char* begin, char* end) {
    block++;
    shared_begin = (uintptr_t)begin, shared_end = (uintptr_t)end;
    size_t words = (shared_end + WORD - 1) / WORD - shared_begin / WORD;
    if (shared.size() < words) shared.resize(words);
}

void forget(uintptr_t at, size_t n) {
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
