// How the emulator runs the threads of a launch: each on a stack of its own,
// one after the other, switched at barriers. set_order changes who is first.

#include "host.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

// snug_switch saves the registers that a call keeps on the running stack, leaves
// its top in *from, and goes on where the stack `to` was left.
extern "C" void snug_switch(void** from, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl snug_switch
snug_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
enum { SAVED = 6, RETURN = 6, FRAME = 8 }; // words: registers, return address, whole frame
#elif defined(__aarch64__)
asm(R"(
.text
.globl snug_switch
.globl _snug_switch
snug_switch:
_snug_switch:
    stp x19, x20, [sp, #-160]!
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x19, x20, [sp], #160
    ret
)");
enum { RETURN = 11, FRAME = 20 };
#else
#error "the emulator runs on amd64 and arm64"
#endif

// Block memory that every device has.
enum { MAX_SHARED = 32 << 10 };

enum State { READY, AT_WARP_BARRIER, AT_BLOCK_BARRIER, AT_BARRIER, AT_NAMED_BARRIER, DONE };

struct Fiber {
    void* sp;
    State state;
    SnugThread self;
    unsigned exchanges; // that this lane has made in this block
    bool orders; // it waits at a barrier of the warp, not for an exchange
    uint32_t barrier, parity; // that it waits for
    SnugCopies copies;
};

struct Warp {
    unsigned epoch; // barriers so far
    unsigned met;   // barriers and exchanges so far
    alignas(64) char slots[2][SNUG_LANES][SNUG_SLOT];
};

static char* stacks;
static Fiber fibers[MAX_THREADS];
static SnugProducts products[MAX_THREADS];
static Warp warps[MAX_THREADS / SNUG_LANES];
static void* scheduler;
static Fiber* running;
static const Launch* current;
static void* operands[MAX_OPERANDS]; // of the current launch, where image_of finds
alignas(16) static char params[MAX_PARAMS]; // them
static unsigned barriers;
static bool faulted;
Moment here = {NOWHERE, 0, 0, 0};

// The block arrays of the current launch, and the block that last saw them.
struct Array {
    char* start;
    size_t size;
    uint64_t block;
};
static std::vector<Array> arrays;
static uint64_t blocks; // so far, over all launches

static unsigned number(const Fiber* f) { return f->self.local.x; }

static void fault(const Fiber* f, const char* what) {
    char text[1000];
    snprintf(text, sizeof text, "kernel %s, block %u,%u,%u, thread %u: %s", current->kernel->name, f->self.block.x, f->self.block.y,
             f->self.block.z, number(f), what);
    set_error(text);
    faulted = true;
}

// The lowest word of a stack keeps its value unless the stack overflows.
static uint64_t& lowest(const Fiber* f) { return *(uint64_t*)(stacks + (size_t)number(f) * STACK); }
static const uint64_t UNTOUCHED = 0x736e7567736e7567;

static void leave(State s) {
    if (lowest(running) != UNTOUCHED) {
        fprintf(stderr, "emulator: kernel %s, thread %u: the stack of %d bytes overflowed\n", current->kernel->name, number(running), STACK);
        abort();
    }
    Fiber* f = running;
    f->state = s;
    if (late) hide_stores(number(f));
    snug_switch(&f->sp, scheduler);
    if (late) show_stores(number(f));
}

// publish lets others see what the running thread has stored.
static void publish() {
    if (late) publish_stores(number(running));
}

extern "C" {

const SnugThread* snug_self() { return &running->self; }
SnugCopies* snug_copies() { return &running->copies; }
SnugProducts* snug_products() { return &products[number(running)]; }

void snug_array(void* array, size_t n) {
    size_t total = n;
    for (Array& a : arrays) {
        if (a.start == array) {
            if (a.block != blocks) memset(array, 0xff, n);
            a.block = blocks;
            return;
        }
        total += a.size;
    }
    if (total > MAX_SHARED) snug_fault("the block has more than 32 KiB of memory");
    memset(array, 0xff, n);
    arrays.push_back(Array{(char*)array, n, blocks});
}

void snug_block_barrier() {
    publish();
    leave(AT_BLOCK_BARRIER);
}
void snug_warp_barrier() {
    publish();
    running->orders = true;
    leave(AT_WARP_BARRIER);
}
void snug_fence() {
    if (late) fence_stores(number(running));
}

const char* snug_exchange(const void* mine, size_t n) {
    Fiber* f = running;
    Warp& w = warps[number(f) / SNUG_LANES];
    auto& slots = w.slots[f->exchanges++ % 2];
    memcpy(slots[f->self.lane], mine, n);
    f->orders = false;
    leave(AT_WARP_BARRIER);
    return slots[0];
}

void snug_atomic_min(unsigned* p, unsigned x) {
    if (late) publish_place(number(running), p, sizeof *p);
    if (x < *p) *p = x;
}
void snug_atomic_add(unsigned* p, unsigned x) {
    if (late) publish_place(number(running), p, sizeof *p);
    *p += x;
}

void snug_fault(const char* what) {
    fault(running, what);
    leave(DONE);
    abort(); // nobody goes on with a fiber that is done
}

} // extern "C"

void pause_thread() { leave(READY); }

void wait_barrier(uint32_t at, uint32_t parity) {
    running->barrier = at, running->parity = parity;
    if (!barrier_passed(at, parity)) leave(AT_BARRIER);
}

void wait_named(uint32_t id) {
    running->barrier = id;
    leave(AT_NAMED_BARRIER);
}

void pass_named(uint32_t id) {
    for (unsigned i = 0; i < current->threads; i++)
        if (fibers[i].state == AT_NAMED_BARRIER && fibers[i].barrier == id) fibers[i].state = READY;
}

// The program's own first.
static std::vector<Image> images;

void find_images() {
    images.clear();
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void*) {
            Image image = {UINTPTR_MAX, 0};
            for (unsigned i = 0; i < info->dlpi_phnum; i++) {
                if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
                uintptr_t low = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
                image.low = std::min(image.low, low);
                image.high = std::max(image.high, low + info->dlpi_phdr[i].p_memsz);
            }
            images.push_back(image);
            return 0;
        },
        nullptr);
}

const Image* image_of(uintptr_t at) {
    for (const Image& image : images)
        if (image.has(at)) return &image;
    return nullptr;
}

static void thread_main() {
    current->kernel->call(current->kernel, operands, params);
    if (snug_products()->count > 0) snug_fault("ended before its products");
    leave(DONE);
    abort();
}

static void start(Fiber* f, unsigned i, SnugDim block) {
    void** top = (void**)(stacks + (size_t)(i + 1) * STACK);
    void** frame = top - FRAME - 2;
    memset(frame, 0, (FRAME + 2) * sizeof *frame);
    frame[RETURN] = (void*)thread_main;
    f->sp = frame;
    *(uint64_t*)(stacks + (size_t)i * STACK) = UNTOUCHED;
    f->state = READY;
    f->exchanges = 0;
    f->copies.count = f->copies.groups = 0;
    products[i].count = products[i].groups = 0;
    products[i].begun = false;
    products[i].given = 0;
    for (SnugSums& s : products[i].hidden) s.at = nullptr;
    f->self = SnugThread{{i, 0, 0}, {current->threads, 1, 1}, block, current->blocks, i % SNUG_LANES};
}

// The order in which blocks, warps and lanes take turns: their own, or one by a seed.
static uint64_t seed;
void set_order(uint64_t s) { seed = s; }
static uint64_t random_bits() { // SplitMix64
    uint64_t z = seed += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}
uint64_t order_bits() { return seed ? random_bits() | 1 : 0; }
// turns lists 0 to n - 1 in the order to take.
static std::vector<unsigned> turns(unsigned n) {
    std::vector<unsigned> order(n);
    for (unsigned i = 0; i < n; i++) order[i] = i;
    if (seed)
        for (unsigned i = n; i > 1; i--) std::swap(order[i - 1], order[random_bits() % i]);
    return order;
}

// goes_on says whether a lane can run.
static bool goes_on(Fiber* f) {
    if (f->state == AT_BARRIER && barrier_passed(f->barrier, f->parity)) f->state = READY;
    return f->state == READY;
}

// run_warp runs the lanes of a warp until each is done or waits for others than the
// warp. It returns whether any ran.
static bool run_warp(Fiber* lanes, Warp* w) {
    for (bool ran = false;;) {
        unsigned waiting = 0, gone = 0;
        unsigned first = seed ? (unsigned)random_bits() : 0, step = seed ? first / SNUG_LANES | 1 : 1;
        for (unsigned i = 0; i < SNUG_LANES; i++) {
            running = &lanes[(first + step * i) % SNUG_LANES];
            if (goes_on(running)) {
                here = Moment{number(running), barriers, w->epoch, w->met, (uintptr_t)stacks + number(running) * (uintptr_t)STACK};
                snug_switch(&scheduler, running->sp);
                ran = true;
            }
            waiting += running->state == AT_WARP_BARRIER;
            gone += running->state == AT_BLOCK_BARRIER || running->state == DONE;
            if (faulted) return true;
        }
        if (waiting == 0) return ran;
        if (gone > 0) {
            fault(running, "some lanes of the warp wait for the others, which ended or wait for the block");
            return true;
        }
        if (waiting < SNUG_LANES) return ran;
        for (unsigned i = 0; i < SNUG_LANES; i++) {
            if (lanes[i].orders != lanes[0].orders) return fault(running, "some lanes of the warp are at a barrier and others at an exchange"), true;
            lanes[i].state = READY;
        }
        w->epoch += lanes[0].orders;
        w->met++;
    }
}

// unblock lets threads go on after all that could have run: past a barrier of the block,
// or because a copy arrives. It returns false without such.
static bool unblock() {
    unsigned n = current->threads, done = 0, at_block = 0;
    Fiber* waits = nullptr;
    for (unsigned i = 0; i < n; i++) {
        done += fibers[i].state == DONE;
        at_block += fibers[i].state == AT_BLOCK_BARRIER;
        if (!waits && fibers[i].state != DONE) waits = &fibers[i];
    }
    if (at_block == n) {
        barriers++;
        for (unsigned i = 0; i < n; i++) fibers[i].state = READY;
        return true;
    }
    if (done + at_block == n) {
        fault(waits, "waits at a barrier that other threads of the block ended without");
        return false;
    }
    if (copy_arrives()) return true;
    fault(waits, "waits for what never comes");
    return false;
}

static void run_block(SnugDim block) {
    unsigned n = current->threads, done = 0;
    const SnugKernel* k = current->kernel;
    barriers = 0;
    blocks++;
    begin_block(k->shared_begin, k->shared_end);
    late_block(k->shared_begin, k->shared_end);
    begin_room(current->room);
    for (unsigned i = 0; i < n; i++) start(&fibers[i], i, block);
    for (unsigned i = 0; i < n / SNUG_LANES; i++) warps[i].epoch = warps[i].met = 0;
    for (;;) {
        bool ran = false;
        for (unsigned w : turns(n / SNUG_LANES))
            if (!faulted) ran |= run_warp(&fibers[w * SNUG_LANES], &warps[w]);
        if (faulted) return;
        done = 0;
        for (unsigned i = 0; i < n; i++) done += fibers[i].state == DONE;
        if (done == n) break;
        if (ran) copy_may_arrive();
        else if (!unblock()) return;
    }
    if (late) end_late_block(n);
    if (const char* what = left_over()) fault(&fibers[0], what);
}

void run(const Launch& l) {
    if (!stacks) {
        void* room = mmap(nullptr, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (room == MAP_FAILED) return set_error("no memory for stacks");
        stacks = (char*)room;
    }
    current = &l;
    if (l.operands.size() > MAX_OPERANDS || l.params.size() > MAX_PARAMS) return set_error("too many operands or parameters");
    std::copy(l.operands.begin(), l.operands.end(), operands);
    std::copy(l.params.begin(), l.params.end(), params);
    faulted = false;
    arrays.clear();
    begin_launch();
    for (unsigned i : turns(l.blocks.x * l.blocks.y * l.blocks.z)) {
        if (faulted) break;
        run_block(SnugDim{i % l.blocks.x, i / l.blocks.x % l.blocks.y, i / l.blocks.x / l.blocks.y});
    }
    if (late) end_late_launch();
    running = nullptr;
    here.thread = NOWHERE;
}
