package qlora

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/nibble"
)

// Type is a 4-bit format: the 16 values that codes stand for.
type Type uint8

// The formats. The zero Type is none.
const (
	// NF4 is NormalFloat: quantiles that cut the normal distribution into equal
	// parts, from -1 to 1 with 0 at code 7 (Dettmers et al. 2023, "QLoRA:
	// Efficient Finetuning of Quantized LLMs", arXiv:2305.14314).
	NF4 Type = iota + 1
	// FP4 is a floating-point number: a sign, two bits of exponent and one of
	// fraction, in units of the largest value. Codes 0 and 8 are both 0.
	FP4
)

// The values of bitsandbytes' get_4bit_type, by code.
var (
	nf4 = nibble.NewFormat([16]float32{
		-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
		-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0,
		0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
		0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1,
	})
	fp4 = nibble.NewFormat([16]float32{
		0, 0.0625 / 12., 8 / 12., 1, 4 / 12., 6 / 12., 2 / 12., 3 / 12.,
		0, -0.0625 / 12., -8 / 12., -1, -4 / 12., -6 / 12., -2 / 12., -3 / 12.,
	})
)

// format returns the tables of t, or nil if it is not one of the formats.
func (t Type) format() *nibble.Format {
	switch t {
	case NF4:
		return nf4
	case FP4:
		return fp4
	}
	return nil
}

// Values returns what the codes 0 to 15 stand for, in units of a block's absmax;
// all 0 for an unknown Type.
func (t Type) Values() [16]float32 {
	if f := t.format(); f != nil {
		return f.Values
	}
	return [16]float32{}
}

// String returns "nf4", "fp4" or "invalid".
func (t Type) String() string {
	switch t {
	case NF4:
		return "nf4"
	case FP4:
		return "fp4"
	}
	return "invalid"
}

// ParseType returns the format that s, "nf4" or "fp4", names. The error wraps
// [snug.ErrConfig].
func ParseType(s string) (Type, error) {
	for _, t := range []Type{NF4, FP4} {
		if s == t.String() {
			return t, nil
		}
	}
	return 0, fmt.Errorf("qlora: unknown format %.20q, want nf4 or fp4: %w", s, snug.ErrConfig)
}
