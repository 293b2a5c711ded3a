// Copies of bytes at any address, for what a blit command does not take.
#include "metal.h"

struct CopyParams { u64 bytes; };

KERNEL(copy_bytes, 256, OPERAND(const u8, src, 0), OPERAND(u8, dst, 1), PARAMS(CopyParams, p)) {
    Thread t = THREAD;
    u64 i = (u64)t.block * t.threads + t.local;
    if (i < p.bytes) dst[i] = src[i];
}
