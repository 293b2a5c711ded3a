// A team is the threads that share a quantization block: a power of two of
// them, with up to SLOTS elements each.
#pragma once
#include "elements.h"

enum { SLOTS = 16, QUADS = SLOTS / 4 };

struct Team {
    u32 lane, lanes; // this thread of how many
    u32 len;         // elements of the block, 0 for none
    bool wide;       // len is a multiple of 4 and packs of 4 lie at multiples of their size
    bool fours;      // a thread has 4 neighbours each time, also where it accesses one by one
};

// slot returns the element of a block that a thread has as its number e:
// threads that are neighbours have neighbours, so that accesses are whole lines.
DEVICE u32 slot(Team team, u32 e) {
    return team.wide || team.fours ? (e / 4 * team.lanes + team.lane) * 4 + e % 4 : e * team.lanes + team.lane;
}

// load returns slots 4j to 4j+3 of a block x, zeros where it has no elements.
template <class T> DEVICE Pack<T, 4> load(Team team, GLOBAL const T* x, u32 j) {
    Pack<T, 4> y = {};
    if (team.wide) {
        u32 at = slot(team, 4 * j);
        if (at < team.len) y = *(GLOBAL const Pack<T, 4>*)(x + at);
        return y;
    }
    UNROLL for (u32 k = 0; k < 4; k++) {
        u32 at = slot(team, 4 * j + k);
        if (at < team.len) y.x[k] = x[at];
    }
    return y;
}

// store writes slots 4j to 4j+3 of a block x.
template <class T> DEVICE void store(Team team, GLOBAL T* x, u32 j, Pack<T, 4> y) {
    if (team.wide) {
        u32 at = slot(team, 4 * j);
        if (at < team.len) *(GLOBAL Pack<T, 4>*)(x + at) = y;
        return;
    }
    UNROLL for (u32 k = 0; k < 4; k++) {
        u32 at = slot(team, 4 * j + k);
        if (at < team.len) x[at] = y.x[k];
    }
}

enum { GROUP_LANES = 32, GROUPS = 256 / GROUP_LANES }; // threads that shuffle, and how many such groups a block has

// team_max returns the largest x of the threads of a team. All threads of the
// block take part; scratch has an element for every GROUP_LANES of them.
DEVICE u32 team_max(Thread t, Team team, u32 x, GROUP u32* scratch) {
    for (u32 d = least(team.lanes, (u32)GROUP_LANES) / 2; d > 0; d /= 2) x = greatest(x, shuffle_xor(x, d));
    if (team.lanes <= GROUP_LANES) return x;
    if (t.local % GROUP_LANES == 0) scratch[t.local / GROUP_LANES] = x;
    sync_threads();
    u32 groups = team.lanes / GROUP_LANES, first = t.local / team.lanes * groups;
    for (u32 g = 0; g < groups; g++) x = greatest(x, scratch[first + g]);
    sync_threads();
    return x;
}

// absmax_of returns the largest magnitude of a block of which this thread has
// x, or NaN if not all of the block is finite.
template <u32 slots> DEVICE float absmax_of(Thread t, Team team, PRIVATE const float* x, GROUP u32* scratch) {
    u32 top = 0;
    UNROLL for (u32 e = 0; e < slots; e++) top = greatest(top, float_bits(x[e]) & 0x7fffffffu);
    top = team_max(t, team, top, scratch);
    return bits_float(top >= 0x7f800000u ? 0x7fc00000u : top);
}
