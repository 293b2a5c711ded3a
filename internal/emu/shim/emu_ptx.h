// The PTX instructions that kernels use, as the PTX manual defines them.
#pragma once
#include "emu.h"

// ldmatrix.m8n8.x4: lane 8·m + r names row r of matrix m. Lane i receives of each
// matrix the elements 2·(i%4) and the next one of row i/4; with .trans, of column
// i/4.
inline void snug_ldmatrix(uint32_t* x, const void* row, bool trans) {
    if ((uintptr_t)row % 16) snug_fault("ldmatrix of a row that is not aligned to 16 bytes");
    const char* slots = snug_exchange(&row, sizeof row);
    unsigned lane = snug_self()->lane;
    for (unsigned m = 0; m < 4; m++) {
        uint16_t two[2];
        for (unsigned e = 0; e < 2; e++) {
            unsigned r = trans ? lane % 4 * 2 + e : lane / 4, c = trans ? lane / 4 : lane % 4 * 2 + e;
            const uint16_t* from;
            memcpy(&from, slots + (8 * m + r) * SNUG_SLOT, sizeof from);
            two[e] = from[c];
        }
        x[m] = (uint32_t)two[0] | (uint32_t)two[1] << 16;
    }
}
inline void ptx_ldmatrix(uint32_t* x, const void* row) { snug_ldmatrix(x, row, false); }
inline void ptx_ldmatrix_trans(uint32_t* x, const void* row) { snug_ldmatrix(x, row, true); }

// mma.m16n8k16: of the 16×16 A, element e of register r in lane i lies in row
// i/4 + 8·(r%2), column 2·(i%4) + e + 8·(r/2); of the 16×8 B in row 2·(i%4) + e +
// 8·r, column i/4; of C, number e in row i/4 + 8·(e/2), column 2·(i%4) + e%2.
template <class T> void snug_mma(float* c, const uint32_t* a, const uint32_t* b) {
    uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const char* slots = snug_exchange(mine, sizeof mine);
    unsigned lane = snug_self()->lane;
    auto word = [&](unsigned from, unsigned r) {
        uint32_t x;
        memcpy(&x, slots + from * SNUG_SLOT + 4 * r, sizeof x);
        return x;
    };
    auto half = [](uint32_t x, unsigned e) { return widen(T{(uint16_t)(x >> 16 * e)}); };
    for (unsigned e = 0; e < 4; e++) {
        unsigned row = lane / 4 + 8 * (e / 2), col = lane % 4 * 2 + e % 2;
        for (unsigned k = 0; k < 16; k++) {
            float x = half(word(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2), k % 2);
            float y = half(word(col * 4 + k % 8 / 2, 4 + k / 8), k % 2);
            c[e] = __builtin_fmaf(x, y, c[e]);
        }
    }
}
inline void ptx_mma_bf16(float* c, const uint32_t* a, const uint32_t* b) { snug_mma<bf16>(c, a, b); }
inline void ptx_mma_f16(float* c, const uint32_t* a, const uint32_t* b) { snug_mma<f16>(c, a, b); }

// cp.async: the copy happens when the thread waits for its group, as late as it
// may.
inline void ptx_cp_async(void* dst, const void* src, unsigned bytes) {
    if ((uintptr_t)dst % 16 || (bytes && (uintptr_t)src % 16)) snug_fault("cp.async with an address that is not aligned to 16 bytes");
    SnugCopies* q = snug_copies();
    if (q->count == SNUG_COPIES) snug_fault("more asynchronous copies than the emulator holds");
    q->item[q->count++] = SnugCopy{dst, bytes ? src : nullptr, q->groups};
}
inline void ptx_cp_async_commit() { snug_copies()->groups++; }
template <int N> void ptx_cp_async_wait() {
    SnugCopies* q = snug_copies();
    unsigned kept = 0;
    for (unsigned i = 0; i < q->count; i++) {
        SnugCopy copy = q->item[i];
        if (copy.group + N >= q->groups) {
            q->item[kept++] = copy;
            continue;
        }
        if (copy.src) *(Wide16*)copy.dst = *(const Wide16*)copy.src;
        else *(Wide16*)copy.dst = Wide16{{0, 0, 0, 0}};
    }
    q->count = kept;
}
