// Arithmetic whose NaNs are those of other hardware: with SNUG_NAN, float is a class, and every NaN that
// an operation gives is the one pattern of snug_nan. Moves, comparisons, changes of sign and bits stay as they are.
#pragma once

extern "C" const uint32_t snug_nan;

struct SnugFloat {
    float value;

    SnugFloat() = default;
    constexpr SnugFloat(float x) : value(x) {}
    template <class T, class = std::enable_if_t<std::is_integral<T>::value>> constexpr SnugFloat(T x) : value((float)x) {}
    template <class T, class = void, class = std::enable_if_t<std::is_same<T, double>::value>> SnugFloat(T x) : SnugFloat(of((float)x)) {}
    template <class T, class = std::enable_if_t<std::is_arithmetic<T>::value>> explicit constexpr operator T() const { return (T)value; }

    static SnugFloat of(float x) {
        if (x != x) memcpy(&x, &snug_nan, sizeof x);
        return SnugFloat(x);
    }

    friend SnugFloat operator+(SnugFloat a, SnugFloat b) { return of(a.value + b.value); }
    friend SnugFloat operator-(SnugFloat a, SnugFloat b) { return of(a.value - b.value); }
    friend SnugFloat operator*(SnugFloat a, SnugFloat b) { return of(a.value * b.value); }
    friend SnugFloat operator/(SnugFloat a, SnugFloat b) { return of(a.value / b.value); }
    friend SnugFloat operator-(SnugFloat a) { return SnugFloat(-a.value); }
    SnugFloat& operator+=(SnugFloat b) { return *this = *this + b; }
    SnugFloat& operator-=(SnugFloat b) { return *this = *this - b; }
    SnugFloat& operator*=(SnugFloat b) { return *this = *this * b; }
    SnugFloat& operator/=(SnugFloat b) { return *this = *this / b; }

    friend bool operator<(SnugFloat a, SnugFloat b) { return a.value < b.value; }
    friend bool operator>(SnugFloat a, SnugFloat b) { return a.value > b.value; }
    friend bool operator<=(SnugFloat a, SnugFloat b) { return a.value <= b.value; }
    friend bool operator>=(SnugFloat a, SnugFloat b) { return a.value >= b.value; }
    friend bool operator==(SnugFloat a, SnugFloat b) { return a.value == b.value; }
    friend bool operator!=(SnugFloat a, SnugFloat b) { return a.value != b.value; }

    // A double and a float give a double. A float literal is no double.
#define SNUG_WITH_DOUBLE(op)                                                                                                \
    template <class D, class = std::enable_if_t<std::is_same<D, double>::value>> friend double operator op(D a, SnugFloat b) { \
        return a op b.value;                                                                                                \
    }                                                                                                                       \
    template <class D, class = std::enable_if_t<std::is_same<D, double>::value>> friend double operator op(SnugFloat a, D b) { \
        return a.value op b;                                                                                                \
    }
    SNUG_WITH_DOUBLE(+)
    SNUG_WITH_DOUBLE(-)
    SNUG_WITH_DOUBLE(*)
    SNUG_WITH_DOUBLE(/)
#undef SNUG_WITH_DOUBLE
};

inline SnugFloat snug_fmaf(SnugFloat a, SnugFloat b, SnugFloat c) { return SnugFloat::of(__builtin_fmaf(a.value, b.value, c.value)); }
inline SnugFloat snug_sqrtf(SnugFloat x) { return SnugFloat::of(__builtin_sqrtf(x.value)); }
inline SnugFloat snug_fabsf(SnugFloat x) { return SnugFloat(__builtin_fabsf(x.value)); }

#define float SnugFloat
#define __builtin_fmaf snug_fmaf
#define __builtin_sqrtf snug_sqrtf
#define __builtin_fabsf snug_fabsf
