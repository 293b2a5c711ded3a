package snug

import (
	"fmt"
	"math"
	"slices"

	"github.com/x448/float16"
)

// Float16 is an IEEE 754 binary16 number, the type of github.com/x448/float16.
type Float16 = float16.Float16

// BFloat16 is the upper half of an IEEE 754 binary32 number: 1 sign, 8
// exponent and 7 fraction bits.
type BFloat16 uint16

// ToBFloat16 rounds x to the nearest BFloat16, ties to even. A NaN stays a
// NaN: it is made quiet and keeps the upper bits of its payload.
func ToBFloat16(x float32) BFloat16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 {
		return BFloat16(b>>16 | 0x40)
	}
	return BFloat16((b + 0x7fff + b>>16&1) >> 16)
}

// Float32 returns the value of x, which float32 holds exactly.
func (x BFloat16) Float32() float32 { return math.Float32frombits(uint32(x) << 16) }

// String formats x as a decimal number.
func (x BFloat16) String() string { return fmt.Sprint(x.Float32()) }

// DType names an element type.
type DType uint8

// The element types. The zero DType is not a type.
const (
	F32    DType = iota + 1 // float32
	F16                     // Float16
	BF16                    // BFloat16
	U8                      // uint8
	I32                     // int32
	F8E4M3                  // Float8E4M3
	F8E5M2                  // Float8E5M2
)

var dtypes = [...]struct {
	name string
	size int
	long []string // other names
}{
	{"invalid", 0, nil}, {"f32", 4, []string{"float32"}}, {"f16", 2, []string{"float16", "half"}}, {"bf16", 2, []string{"bfloat16"}},
	{"u8", 1, []string{"uint8"}}, {"i32", 4, []string{"int32"}}, {"f8e4m3", 1, []string{"float8_e4m3fn"}}, {"f8e5m2", 1, []string{"float8_e5m2"}},
}

// String returns "f32", "f16", "bf16", "u8", "i32", "f8e4m3", "f8e5m2" or "invalid".
func (t DType) String() string {
	if int(t) < len(dtypes) {
		return dtypes[t].name
	}
	return dtypes[0].name
}

// Size returns the bytes of one element, 0 for an invalid type.
func (t DType) Size() int {
	if int(t) < len(dtypes) {
		return dtypes[t].size
	}
	return 0
}

// IsFloat reports whether t is a type that functions compute with: F32, F16 or BF16. The types of 8 bits are for
// storage: package amp casts them, and package qlora multiplies by weights that are held in them.
func (t DType) IsFloat() bool { return t >= F32 && t <= BF16 }

// ParseDType returns the type that s names. It takes the names that
// [DType.String] gives and the long forms "float32", "float16", "half",
// "bfloat16", "uint8", "int32", "float8_e4m3fn" and "float8_e5m2".
func ParseDType(s string) (DType, error) {
	for t, d := range dtypes {
		if t > 0 && (s == d.name || slices.Contains(d.long, s)) {
			return DType(t), nil
		}
	}
	return 0, fmt.Errorf("snug: unknown element type %q, want f32, f16, bf16, u8, i32, f8e4m3 or f8e5m2: %w", s, ErrDType)
}

// Element is a type that an [Array] can hold.
type Element interface {
	float32 | Float16 | BFloat16 | uint8 | int32 | Float8E4M3 | Float8E5M2
}

// DTypeOf returns the DType of T.
func DTypeOf[T Element]() DType {
	switch any(*new(T)).(type) {
	case float32:
		return F32
	case Float16:
		return F16
	case BFloat16:
		return BF16
	case uint8:
		return U8
	case int32:
		return I32
	case Float8E4M3:
		return F8E4M3
	default:
		return F8E5M2
	}
}
