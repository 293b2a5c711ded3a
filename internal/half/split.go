package half

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Splits are the conversions of one tier between float32 and its two halves: a
// bfloat16 and the signed 16 bits by which the float32's bits differ from it. The
// vectors have one length, which the caller checks; they may not overlap.
type Splits struct {
	// Join writes the float32 whose bits are upper[i]<<16 + rest[i]. An upper half
	// that is NaN gives NaN, whatever rest holds.
	Join func(dst []float32, upper []snug.BFloat16, rest []int16)
	// Split rounds src to nearest, ties away from zero, into upper, and writes the
	// lower 16 bits of src to rest. Join then gives src again, except NaNs: they
	// become quiet, with a rest of zero.
	Split func(upper []snug.BFloat16, rest []int16, src []float32)
}

// SplitRegistry holds the conversions of every tier.
var SplitRegistry cpu.Registry[Splits]

func init() { SplitRegistry.Add(cpu.Go, Splits{join, split}) }

func join(dst []float32, upper []snug.BFloat16, rest []int16) {
	upper, rest = upper[:len(dst)], rest[:len(dst)]
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(upper[i])<<16 + uint32(int32(rest[i])))
	}
}

// split rounds by adding half of the discarded part to the magnitude, so a carry
// goes into the exponent, at the most to infinity. Only a NaN could carry on, into
// the sign.
func split(upper []snug.BFloat16, rest []int16, src []float32) {
	upper, rest = upper[:len(src)], rest[:len(src)]
	for i, x := range src {
		if x != x {
			upper[i], rest[i] = snug.ToBFloat16(x), 0
			continue
		}
		b := math.Float32bits(x)
		upper[i], rest[i] = snug.BFloat16((b+0x8000)>>16), int16(b)
	}
}
