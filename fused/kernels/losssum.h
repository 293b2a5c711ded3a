// The sum of losses.
#pragma once
// Losses are added in their order to a double.

struct LossSumParams {
    u64 rows;
    u32 first; // start with 0
    u32 unused;
};

#if defined(SNUG_CUDA)

DEVICE u64 double_add(u64 sum, float x) {
    return __builtin_bit_cast(u64, __builtin_bit_cast(double, sum) + (double)x);
}

#else // without doubles, for numbers that are not negative

// double_of returns the bits of x as a double.
DEVICE u64 double_of(float x) {
    u32 bits = float_bits(x) & 0x7fffffffu, exponent = bits >> 23;
    u64 fraction = bits & 0x7fffffu;
    if (exponent == 255) return (u64)2047 << 52 | fraction << 29;
    if (bits == 0) return 0;
    if (exponent > 0) return (u64)(exponent + 896) << 52 | fraction << 29;
    u32 shift = 0;
    while (!(fraction << shift & 0x800000u)) shift++;
    return (u64)(897 - shift) << 52 | (fraction << shift & 0x7fffffu) << 29;
}

// double_add returns the bits of sum + x, to nearest even.
DEVICE u64 double_add(u64 sum, float x) {
    u64 term = double_of(x), a = greatest(sum, term), b = least(sum, term); // the order of doubles
    u64 one = (u64)1 << 52, exponent = a >> 52, apart = exponent - (b >> 52);
    if (exponent == 2047 || b == 0) return a;
    u64 high = ((a & (one - 1)) | one) << 10, low = ((b & (one - 1)) | one) << 10;
    u64 shifted = apart < 63 ? low >> apart : 0;
    shifted |= apart >= 63 || shifted << apart != low; // one bit stands for all that are cut off
    high += shifted;
    if (high >> 63) {
        high = high >> 1 | (high & 1);
        exponent++;
    }
    u64 kept = high >> 10, cut = high & 1023;
    kept += cut > 512 || (cut == 512 && (kept & 1));
    return ((exponent - 1) << 52) + kept; // the first bit of kept adds to the exponent
}

#endif

KERNEL(fused_cross_entropy_sum, 256, OPERAND(u64, sum, 0), OPERAND(const f32, losses, 1), PARAMS(LossSumParams, p)) {
    Thread t = THREAD;
    SHARED(float, some, 256);
    u64 bits = p.first ? 0 : sum[0];
    for (u64 from = 0; from < p.rows; from += 256) {
        if (from + t.local < p.rows) some[t.local] = losses[from + t.local];
        sync_threads();
        u32 n = (u32)least(p.rows - from, (u64)256);
        if (t.local == 0)
            for (u32 i = 0; i < n; i++) bits = double_add(bits, some[i]);
        sync_threads();
    }
    if (t.local == 0) sum[0] = bits;
}
