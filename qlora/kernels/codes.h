// Codes of neighbouring elements.
#pragma once
#include "elements.h"

// load_codes loads those of 8 elements, the first byte lowest.
template <bool WIDE> DEVICE u32 load_codes(GLOBAL const u8* packed) {
    if (WIDE) return *(GLOBAL const u32*)packed;
    return packed[0] | (u32)packed[1] << 8 | (u32)packed[2] << 16 | (u32)packed[3] << 24;
}

// code returns number k of what load_codes returned.
DEVICE u32 code(u32 codes, u32 k) { return codes >> (k * 4 ^ 4) & 15; }
