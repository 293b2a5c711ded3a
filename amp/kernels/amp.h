// Kernels of package amp. Each does what the Go function of its job does.

// ---- cast: dst[i] = src[i], to nearest even.

struct CastParams {
    u64 n;
};

template <class D, class S>
DEVICE void cast(Thread t, GLOBAL D* dst, GLOBAL const S* src, u64 n) {
    for (u64 i = (u64)t.block * t.threads + t.local; i < n; i += (u64)t.blocks * t.threads)
        dst[i] = narrow<D>(widen(src[i]));
}

#define CAST(S, D)                                                                                                   \
    KERNEL(amp_cast_##S##_##D, 256, OPERAND(D, dst, 0), OPERAND(const S, src, 1), PARAMS(CastParams, p)) {           \
        cast<D, S>(THREAD, dst, src, p.n);                                                                           \
    }
CAST(f32, f16)
CAST(f32, bf16)
CAST(f16, f32)
CAST(f16, bf16)
CAST(bf16, f32)
CAST(bf16, f16)
