// Steps of AdamW of many parameters in one launch.
#pragma once
#include "adamw.h"
#include "many.h"

#if defined(SNUG_CUDA)

enum { MAX_STEPS32 = 100, MAX_STEPS8 = 11 };

struct StepItem {
    u64 p, g, state, n; // addresses, elements
    u32 first, types;   // the numbers of p's type, of g's in the next byte, then whether all lie at multiples of packs
};

struct Steps32Params {
    Coef coef;
    u32 chunk, count, unused;
    StepItem items[MAX_STEPS32];
};

KERNEL(quant8_steps32, 256, PARAMS(Steps32Params, all)) {
    Thread t = THREAD;
    u32 i = item_of(t.block, all);
    StepItem item = all.items[i];
    t = of_item(t, i, all);
    Step32Params q = {item.n, all.chunk, item.types >> 16, all.coef, item.types & 255, item.types >> 8 & 255, 0};
    step32(t, at_address<u8>(item.p), at_address<const u8>(item.g), at_address<f32>(item.state), q);
}

struct Steps8Params {
    Coef coef;
    u32 chunk, block, lanes;
    f32 positive[129];
    u32 count;
    f32 map2[256];
    i32 tree1[TREE], tree2[TREE];
    StepItem items[MAX_STEPS8];
};

KERNEL(quant8_steps8, 256, PARAMS(Steps8Params, q)) {
    SHARED(Tables, tables, 1);
    SHARED(u32, scratch, GROUPS);
    Thread t = THREAD;
    FILL_TABLES(t, tables, q)
    u32 i = item_of(t.block, q);
    StepItem item = q.items[i];
    t = of_item(t, i, q);
    Team team = {t.local % q.lanes, q.lanes, 0, item.types >> 16 != 0, false};
    step8(t, at_address<u8>(item.p), item.types & 255, at_address<const u8>(item.g), item.types >> 8 & 255, at_address<u8>(item.state), item.n,
          q.chunk, q.block, team, q.coef, tables, scratch);
}

#endif
