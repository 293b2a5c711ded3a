// What passes over gradients find: the sum of squares, and the values that are
// not finite. See the Go package internal/measure.
#pragma once
#include "elements.h"
#include "wide.h"

// Record is what one piece of some vectors holds, as the Go type of that name.
struct Record {
    u64 squares; // a double
    i64 count, ordinal, index;
    f32 value;
    u32 unused;
};

// Found is what a thread saw: the squares, and how many values are not finite,
// the first of them at element `first`.
struct Found {
    Wide squares;
    u64 count, first;
};

DEVICE Found found_nothing() { return Found{wide_zero(), 0, 0}; }

DEVICE void look(PRIVATE Found& f, float x, u64 i) {
    f.squares = wide_sum(f.squares, wide_square(x));
    if (!is_finite(x) && f.count++ == 0) f.first = i;
}

DEVICE Found both(Found a, Found b) {
    u64 first = b.count && (!a.count || b.first < a.first) ? b.first : a.first;
    return Found{wide_sum(a.squares, b.squares), a.count + b.count, first};
}

// add_found adds what the threads of a block, which all call it, saw of vector
// number ordinal, x, to a record, or overwrites it unless it was used before.
// found is as long as the block.
template <class T>
DEVICE void add_found(Thread t, Found mine, GLOBAL const T* x, i64 ordinal, GLOBAL Record* record, bool used, GROUP Found* found) {
    found[t.local] = mine;
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) found[t.local] = both(found[t.local], found[t.local + d]);
    }
    if (t.local > 0) return;
    Found all = found[0];
    Record r = {0, 0, 0, 0, 0, 0};
    if (used) r = *record;
    r.squares = double_of_wide(wide_sum(wide_of_double(r.squares), all.squares));
    if (all.count > 0 && r.count == 0) {
        r.ordinal = ordinal;
        r.index = (i64)all.first;
        r.value = widen(x[all.first]);
    }
    r.count += (i64)all.count;
    *record = r;
}
