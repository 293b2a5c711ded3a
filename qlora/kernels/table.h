// Tables of 16 numbers.
#pragma once

// FILL16 copies a table of the parameters p to block memory. Its indexes are
// constants, for which compilers need no copy in the thread's memory.
#define FILL16(name) \
    UNROLL for (u32 k = 0; k < 16; k++) \
        if (t.local == k) name[k] = p.name[k]
