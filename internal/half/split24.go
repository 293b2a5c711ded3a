package half

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Splits24 are the conversions of one tier between float32 and numbers of 24 bits. A number of
// 24 bits is stored as a bfloat16 and a signed byte: the byte is the upper 24 bits of the
// float32, as an integer, less the bits of the bfloat16 times 256. All vectors have the same
// length, which the caller checks; they may not overlap.
type Splits24 struct {
	// Join writes the float32 whose bits are upper[i]<<16 + rest[i]<<8. An upper half
	// that is NaN gives NaN, whatever rest holds.
	Join func(dst []float32, upper []snug.BFloat16, rest []int8)
	// Split rounds src to 24 bits, to nearest even, and those to nearest, ties away from
	// zero, into upper; rest has their lowest 8 bits. A NaN becomes quiet, with a rest of 0.
	Split func(upper []snug.BFloat16, rest []int8, src []float32)
	// SplitStochastic is Split that rounds to 24 bits at random: it adds the upper 8 bits of
	// draws[i] to the bits of src[i] and cuts off the lowest 8.
	SplitStochastic func(upper []snug.BFloat16, rest []int8, src []float32, draws []uint16)
}

// Split24Registry holds the conversions of every tier.
var Split24Registry cpu.Registry[Splits24]

func init() { Split24Registry.Add(cpu.Go, Splits24{join24, split24, split24Stochastic}) }

func join24(dst []float32, upper []snug.BFloat16, rest []int8) {
	upper, rest = upper[:len(dst)], rest[:len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(upper[i])<<16 + uint32(int32(rest[i])<<8))
	}
}

func split24(upper []snug.BFloat16, rest []int8, src []float32) {
	upper, rest = upper[:len(src)], rest[:len(src)]
	for i, x := range src {
		b := math.Float32bits(x)
		upper[i], rest[i] = parts24(x, b+0x7f+b>>8&1)
	}
}

func split24Stochastic(upper []snug.BFloat16, rest []int8, src []float32, draws []uint16) {
	upper, rest, draws = upper[:len(src)], rest[:len(src)], draws[:len(src)]
	for i, x := range src {
		upper[i], rest[i] = parts24(x, math.Float32bits(x)+uint32(draws[i]>>8))
	}
}

// parts24 splits the upper 24 bits of b, the bits to which x was rounded. As in split, a carry
// goes into the exponent and at most makes an infinity; only a NaN could carry further.
func parts24(x float32, b uint32) (snug.BFloat16, int8) {
	if x != x {
		return snug.ToBFloat16(x), 0
	}
	return snug.BFloat16((b + 0x8000) >> 16), int8(b >> 8)
}
