// What the parts of the emulator share.
#pragma once

#include <string>
#include <vector>

#include "emu.h"

enum { MAX_THREADS = 1024, MAX_OPERANDS = 30, MAX_PARAMS = 4096 }; // Metal has 31 buffers, one for the parameters

struct Launch {
    const SnugKernel* kernel;
    SnugDim blocks;
    unsigned threads;
    std::vector<void*> operands;
    std::string params;
};

// run runs a launch, or stops it at the first fault (run.cpp).
void run(const Launch& l);

// set_error keeps the first error until the other end asks.
void set_error(const std::string& text);

// allocated says whether n bytes of device memory lie at an address.
bool allocated(uintptr_t at, size_t n);

// ---- check.cpp: what threads may access. Only modules that are compiled with
// checks call it.

// Where a thread stands: accesses of two threads are ordered when a barrier that
// both wait at lies between.
struct Moment {
    unsigned thread;     // in its block
    unsigned barriers;   // of the block so far
    unsigned exchanges;  // of its warp so far
};

// begin_launch and begin_block say that what follows is not ordered by
// barriers with what was before. shared is the block's memory, undefined now.
void begin_launch();
void begin_block(char* shared_begin, char* shared_end);
// forget drops what is known of an allocation.
void forget(uintptr_t at, size_t n);
// now returns where the running thread stands, false between launches (run.cpp).
bool now(Moment* m);
// on_stack says whether an address lies in the running thread's stack, in_module
// whether in a module's constants (run.cpp).
bool on_stack(uintptr_t at);
bool in_module(uintptr_t at);
// find_images makes in_module know the modules that are loaded (run.cpp).
void find_images();
