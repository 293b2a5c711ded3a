// What the parts of the emulator share.
#pragma once

#include <string>
#include <vector>

#include "emu.h"

enum { MAX_THREADS = 1024, MAX_OPERANDS = 30, MAX_PARAMS = 4096 }; // Metal has 31 buffers, one for the parameters

struct Launch {
    const SnugKernel* kernel;
    SnugDim blocks;
    unsigned threads, room; // of a block; bytes
    std::vector<SnugTensorMap> maps;
    std::vector<void*> operands; // maps first
    std::string params;
};

// run runs a launch, or stops it at the first fault (run.cpp).
void run(const Launch& l);

// set_order makes blocks, warps and lanes take turns in an order by a seed (run.cpp).
void set_order(uint64_t seed);

// set_error keeps the first error until the other end asks.
void set_error(const std::string& text);

// allocated says whether n bytes of device memory lie at an address, allocation where
// the allocation begins and ends that has it.
bool allocated(uintptr_t at, size_t n);
bool allocation(uintptr_t at, uintptr_t* low, uintptr_t* high);

// ---- check.cpp: what threads may access. Only modules that are compiled with
// checks call it.

// Where a thread stands: accesses of two threads are ordered when a barrier that
// both wait at lies between.
struct Moment {
    unsigned thread;     // in its block
    unsigned barriers;   // of the block so far
    unsigned exchanges;  // barriers of its warp so far
    unsigned met;        // and exchanges of lanes with them
    uintptr_t stack;     // where its stack begins
};

// begin_launch and begin_block say that what follows is not ordered by
// barriers with what was before. shared is the block's memory, undefined now.
void begin_launch();
void begin_block(char* shared_begin, char* shared_end);
// forget drops what is known of an allocation.
void forget(uintptr_t at, size_t n);
// here is where the running thread stands; between launches its thread is NOWHERE (run.cpp).
enum : unsigned { NOWHERE = ~0u };
extern Moment here;
enum { STACK = 256 << 10 }; // bytes of a thread's stack
// Image is where the program or a library of it lies.
struct Image {
    uintptr_t low, high;
    bool has(uintptr_t at) const { return at >= low && at < high; }
};
// image_of finds the one that has an address, such as a module's constants, or returns null (run.cpp).
const Image* image_of(uintptr_t at);
// find_images makes image_of know the modules that are loaded (run.cpp).
void find_images();

// ---- late.cpp: stores that others see late, if late is set.

extern bool late;
// late_block says where the memory of the block lies that begins.
void late_block(char* shared_begin, char* shared_end);
// late_store says that the running thread is about to store.
void late_store(char* at, size_t n);
// hide_stores and show_stores are for a thread that is left and goes on. publish_stores lets the others of the block see
// its stores, fence_stores all. publish_place lets all see its stores to a place.
void hide_stores(unsigned thread);
void show_stores(unsigned thread);
void publish_stores(unsigned thread);
void publish_place(unsigned thread, const void* p, size_t n);
void fence_stores(unsigned thread);
void end_late_block(unsigned threads);
void end_late_launch();
// order_bits returns random bits by the seed of the order, 0 without (run.cpp).
uint64_t order_bits();

// ---- hopper.cpp: block memory of a launch's size, its barriers and copies.

enum { MAX_ROOM = 227 << 10 }; // bytes of a block

// in_room says whether an address lies in the memory of the launch's size.
bool in_room(uintptr_t at);
// begin_room says that a block with so many bytes begins.
void begin_room(unsigned bytes);
// barrier_passed says whether the phase of a parity has ended.
bool barrier_passed(uint32_t at, uint32_t parity);
// copy_arrives ends one of the copies that are under way, and returns false without any.
bool copy_arrives();
// copy_may_arrive ends one in some of the blocks, at any time; others have their copies as
// late as can be.
void copy_may_arrive();
// left_over says what a block that ends should have waited for, null if nothing.
const char* left_over();
// pause_thread lets the others run before the running thread goes on (run.cpp).
void pause_thread();
// wait_barrier and wait_named make the running thread wait (run.cpp).
void wait_barrier(uint32_t at, uint32_t parity);
void wait_named(uint32_t number);
// pass_named lets the threads go on that wait at a named barrier (run.cpp).
void pass_named(uint32_t number);
