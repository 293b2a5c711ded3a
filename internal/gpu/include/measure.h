// What passes over gradients find: the sum of squares, and the values that are
// not finite. See the Go package internal/measure.
#pragma once
#include "elements.h"
#include "many.h"
#include "wide.h"

// Record is what one piece of some vectors holds, as the Go type of that name.
struct Record {
    u64 squares; // a double
    i64 count, ordinal, index;
    f32 value;
    u32 unused;
};

// Piece is the part of a vector that a block measures: elements lo to hi-1, of which those before whole are packs of
// per neighbours.
struct Piece {
    u64 lo, whole, hi;
    u32 per;
};

// piece_of returns piece number t.block of n elements.
DEVICE Piece piece_of(Thread t, u64 n, u64 piece, u32 per, u32 wide) {
    u64 lo = t.block * piece, hi = least(lo + piece, n);
    return Piece{lo, wide ? lo + (hi - lo) / per * per : lo, hi, per};
}

// Sums are sums of squares, which add up to one.
struct Sums {
    Wide x[WIDES];
};

DEVICE Sums no_sums() {
    Sums s;
    UNROLL for (u32 i = 0; i < WIDES; i++) s.x[i] = wide_zero();
    return s;
}

// add_square adds the square of element number k of a pack.
DEVICE void add_square(PRIVATE Sums& s, u32 k, float x) { s.x[k % WIDES] = wide_add_square(s.x[k % WIDES], x); }

DEVICE Wide sum_of(Sums s) {
    Wide sum = s.x[0];
    UNROLL for (u32 i = 1; i < WIDES; i++) sum = wide_sum(sum, s.x[i]);
    return sum;
}

// Found says how many values are not finite, the first of them at element `first`.
struct Found {
    u64 count, first;
};

DEVICE void look(PRIVATE Found& f, float x, u64 i) {
    if (!is_finite(x) && f.count++ == 0) f.first = i;
}

DEVICE Found both(Found a, Found b) {
    u64 first = b.count && (!a.count || b.first < a.first) ? b.first : a.first;
    return Found{a.count + b.count, first};
}

// Scratch is what add_found needs for each thread of a block.
struct Scratch {
    Wide squares;
    Found found;
};

// find_in returns what the block finds in a piece. A thread looks at the elements that it has measured.
template <class T> DEVICE Found find_in(Thread t, GLOBAL const T* x, Piece p, GROUP Scratch* scratch) {
    Found f = {0, 0};
    for (u64 i = p.lo + t.local * p.per; i < p.whole; i += t.threads * p.per)
        for (u32 k = 0; k < p.per; k++) look(f, widen(x[i + k]), i + k);
    for (u64 i = p.whole + t.local; i < p.hi; i += t.threads) look(f, widen(x[i]), i);
    scratch[t.local].found = f;
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) scratch[t.local].found = both(scratch[t.local].found, scratch[t.local + d].found);
    }
    sync_threads();
    return scratch[0].found;
}

// add_found adds what the threads of a block, which all call it, have measured in
// their piece of vector number ordinal, x, to a record, or overwrites it unless it
// was used before. A sum of squares is finite just if the values are; if not, they
// are looked for. scratch is as long as the block.
template <class T>
DEVICE void add_found(Thread t, Wide mine, GLOBAL const T* x, Piece p, i64 ordinal, GLOBAL Record* record, bool used,
                      GROUP Scratch* scratch) {
    scratch[t.local].squares = mine;
    for (u32 d = t.threads / 2; d > 0; d /= 2) {
        sync_threads();
        if (t.local < d) scratch[t.local].squares = wide_sum(scratch[t.local].squares, scratch[t.local + d].squares);
    }
    sync_threads();
    Wide squares = scratch[0].squares;
    Found all = {0, 0};
    if (!wide_finite(squares)) all = find_in(t, x, p, scratch);
    if (t.local > 0) return;
    Record r = {0, 0, 0, 0, 0, 0};
    if (used) r = *record;
    r.squares = double_of_wide(wide_sum(wide_of_double(r.squares), squares));
    if (all.count > 0 && r.count == 0) {
        r.ordinal = ordinal;
        r.index = (i64)all.first;
        r.value = widen(x[all.first]);
    }
    r.count += (i64)all.count;
    *record = r;
}

#if defined(SNUG_CUDA)

// ---- gather: what a launch over many vectors has left in `parts`, a record for each piece, is added to the records, as
// passes over one vector after the other do.

enum { MAX_VECTORS = 100 };

struct GatherParams {
    u32 count; // of the vectors
    u32 used;  // how many records earlier passes have written
    u32 first[MAX_VECTORS + 1]; // of the parts of a vector
};

DEVICE void add_record(PRIVATE Record& r, Record o) {
    r.squares = double_of_wide(wide_sum(wide_of_double(r.squares), wide_of_double(o.squares)));
    if (o.count > 0 && r.count == 0) {
        r.ordinal = o.ordinal;
        r.index = o.index;
        r.value = o.value;
    }
    r.count += o.count;
}

#define GATHER(name)                                                                                              \
    KERNEL(name, 256, OPERAND(Record, records, 0), OPERAND(const Record, parts, 1), PARAMS(GatherParams, p)) {    \
        Thread t = THREAD;                                                                                        \
        u32 i = t.block * t.threads + t.local;                                                                    \
        Record r = {0, 0, 0, 0, 0, 0};                                                                            \
        if (i < p.used) r = records[i];                                                                           \
        bool any = false;                                                                                         \
        for (u32 k = 0; k < p.count; k++) {                                                                       \
            if (i >= p.first[k + 1] - p.first[k]) continue;                                                       \
            add_record(r, parts[p.first[k] + i]);                                                                 \
            any = true;                                                                                           \
        }                                                                                                         \
        if (any) records[i] = r;                                                                                  \
    }

#endif
