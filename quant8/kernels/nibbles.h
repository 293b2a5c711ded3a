// Codes of 4 bits, of which two share a byte, the first in its upper half.
#pragma once
#include "blobs.h"

// Nibbles is Tables for 4 bits: the ascending values of the codes, of states without
// signs and with, and the limits of internal/nibble between them.
struct Nibbles {
    enum : u32 { bits = 4, slots = SLOTS / 2 };
    f32 values[2][16], limits[2][16];
};

// THREADS4 share the tables. With the half of SLOTS twice as many have room in registers.
enum { THREADS4 = 512 };

// FILL_NIBBLES copies the maps of parameters q to tables.
#define FILL_NIBBLES(t, tables, q)                                                          \
    if (t.local < 32) {                                                                     \
        u32 sign_ = t.local / 16, code_ = t.local % 16;                                     \
        tables[0].values[sign_][code_] = q.tables.values[sign_][code_];                     \
        tables[0].limits[sign_][code_] = q.tables.limits[sign_][code_];                     \
    }                                                                                       \
    sync_threads();

DEVICE float value_of(GROUP const Nibbles* tables, u32 has_sign, u32 code) { return tables->values[has_sign][code]; }

// load_codes returns the codes of slots 4j to 4j+3, in 2 bytes.
DEVICE Pack<u8, 4> load_codes(GROUP const Nibbles*, Team team, GLOBAL const u8* codes, u32 j) {
    u32 at = slot(team, 4 * j);
    Pack<u8, 2> two = {};
    if (team.wide && at < team.len) two = *(GLOBAL const Pack<u8, 2>*)(codes + at / 2);
    UNROLL for (u32 k = 0; k < 2; k++)
        if (!team.wide && at + 2 * k < team.len) two.x[k] = codes[at / 2 + k];
    Pack<u8, 4> c;
    UNROLL for (u32 k = 0; k < 4; k++) c.x[k] = (u8)(k % 2 ? two.x[k / 2] & 15 : two.x[k / 2] >> 4);
    return c;
}

// nearest4 returns how many limits are below x.
DEVICE u32 nearest4(GROUP const f32* limits, float x) {
    u32 k = 1;
    UNROLL for (u32 level = 0; level < 4; level++) k = 2 * k + (x > limits[k]);
    return k - 16;
}

// encode writes the codes of a block of which this thread has x, zeros where there are no
// elements: half of the last byte may be the code of that. Where absmax is 0 or NaN all are.
DEVICE void encode(GROUP const Nibbles* tables, u32 has_sign, Team team, GLOBAL u8* codes, PRIVATE const float* x, float absmax) {
    bool none = absmax == 0 || is_nan(absmax);
    UNROLL for (u32 j = 0; j < Nibbles::slots / 4; j++) {
        u32 at = slot(team, 4 * j), c[4];
        UNROLL for (u32 k = 0; k < 4; k++) c[k] = nearest4(tables->limits[has_sign], none ? 0.0f : x[4 * j + k] / absmax);
        Pack<u8, 2> two = {{(u8)(c[0] << 4 | c[1]), (u8)(c[2] << 4 | c[3])}};
        if (team.wide && at < team.len) *(GLOBAL Pack<u8, 2>*)(codes + at / 2) = two;
        UNROLL for (u32 k = 0; k < 2; k++)
            if (!team.wide && at + 2 * k < team.len) codes[at / 2 + k] = two.x[k];
    }
}
