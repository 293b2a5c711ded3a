// Wide is a sum of squares of floats, at least as exact as in double: in CUDA a
// double, in Metal, which has none, an integer and an exponent.
#pragma once

#if defined(SNUG_CUDA)

struct Wide { double x; };

DEVICE Wide wide_zero() { return Wide{0}; }
DEVICE Wide wide_sum(Wide a, Wide b) { return Wide{a.x + b.x}; }
DEVICE Wide wide_square(float x) { return Wide{(double)x * x}; }
DEVICE Wide wide_of_double(u64 bits) { return Wide{__builtin_bit_cast(double, bits)}; }
DEVICE u64 double_of_wide(Wide a) { return __builtin_bit_cast(u64, a.x); }
DEVICE bool wide_finite(Wide a) { return (double_of_wide(a) >> 52 & 2047) != 2047; }

// wide_add_square is wide_sum(a, wide_square(x)) in one instruction: the square is exact.
#if defined(__CUDA_ARCH__) && !defined(SNUG_EMU)
DEVICE Wide wide_add_square(Wide a, float x) { return Wide{__fma_rn((double)x, (double)x, a.x)}; }
#else
DEVICE Wide wide_add_square(Wide a, float x) { return Wide{__builtin_fma((double)x, (double)x, a.x)}; }
#endif

// WIDES is how many sums of its own a thread adds to in turn, so that they do not wait for one another.
enum { WIDES = 4 };

#else

// Wide is mantissa·2^unit, or an infinity or NaN. The mantissa is 0, or from
// 2^54 on unless it is exact, and below 2^63. What a sum cuts off thus is below
// 2^-54 of it.
struct Wide {
    u64 mantissa;
    i32 unit;
    u32 special; // 1 for an infinity, 2 or 3 for NaN
};

DEVICE Wide wide_zero() { return Wide{0, 0, 0}; }

DEVICE Wide wide_sum(Wide a, Wide b) {
    u32 special = a.special | b.special;
    if (b.mantissa == 0) return Wide{a.mantissa, a.unit, special};
    if (a.mantissa == 0) return Wide{b.mantissa, b.unit, special};
    i32 apart = a.unit - b.unit;
    if (apart >= 0) b.mantissa = apart < 64 ? b.mantissa >> apart : 0;
    else a.mantissa = -apart < 64 ? a.mantissa >> -apart : 0;
    u64 sum = a.mantissa + b.mantissa;
    i32 unit = apart >= 0 ? a.unit : b.unit;
    if (sum >> 63) return Wide{sum >> 4, unit + 4, special};
    return Wide{sum, unit, special};
}

// wide_square is exact: a square has 48 bits.
DEVICE Wide wide_square(float x) {
    u32 bits = float_bits(x) & 0x7fffffffu, exponent = bits >> 23, fraction = bits & 0x7fffffu;
    if (exponent == 255) return Wide{0, 0, fraction ? 2u : 1u};
    if (exponent > 0) fraction |= 0x800000u;
    else exponent = 1; // subnormal, whose square may not be
    return Wide{(u64)fraction * fraction << 8, 2 * (i32)exponent - 308, 0};
}

DEVICE bool wide_finite(Wide a) { return a.special == 0; }
DEVICE Wide wide_add_square(Wide a, float x) { return wide_sum(a, wide_square(x)); }
enum { WIDES = 1 };

// wide_of_double takes the bits of a double that is 0 or a normal number, not
// negative, an infinity or NaN.
DEVICE Wide wide_of_double(u64 bits) {
    u64 one = (u64)1 << 52, fraction = bits & (one - 1);
    i32 exponent = (i32)(bits >> 52);
    if (exponent == 0) return wide_zero();
    if (exponent == 2047) return Wide{0, 0, fraction ? 2u : 1u};
    return Wide{(fraction | one) << 9, exponent - 1084, 0};
}

// double_of_wide rounds to nearest even.
DEVICE u64 double_of_wide(Wide a) {
    u64 infinity = (u64)2047 << 52;
    if (a.special) return a.special == 1 ? infinity : infinity | (u64)1 << 51;
    if (a.mantissa == 0) return 0;
    while (!(a.mantissa >> 63)) a.mantissa <<= 1, a.unit--;
    u64 kept = a.mantissa >> 11, cut = a.mantissa & 0x7ff;
    kept += cut > 0x400 || (cut == 0x400 && (kept & 1));
    return ((u64)(a.unit + 1085) << 52) + kept; // the first bit of kept adds to the exponent
}

#endif
