package half

import (
	"math"
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Splits are the conversions of one tier between float32 and two parts: a bfloat16, and a signed rest of 16 or 8 bits. With
// 16 bits the rest is the number by which the bits of the float32 differ from those of the bfloat16. With 8 bits the parts
// are a number of 24 bits: the rest is the upper 24 bits of the float32, as an integer, less the bits of the bfloat16 times
// 256. All vectors have the same length, which the caller checks; they may not overlap.
type Splits[R int8 | int16] struct {
	// Join writes the float32 whose bits are upper[i]<<16 + rest[i], which 8 bits move up by 8. An upper half
	// that is NaN gives NaN, whatever rest holds.
	Join func(dst []float32, upper []snug.BFloat16, rest []R)
	// Split rounds src to 24 bits, to nearest even, if the rest has 8, and that to nearest, ties away from zero, into upper;
	// rest has the lowest bits. A NaN becomes quiet, with a rest of 0. With 16 bits Join gives src again, except NaNs.
	Split func(upper []snug.BFloat16, rest []R, src []float32)
	// SplitStochastic, of 8 bits alone, is Split that rounds to 24 bits at random: it adds the upper 8 bits of
	// draws[i] to the bits of src[i] and cuts off the lowest 8.
	SplitStochastic func(upper []snug.BFloat16, rest []R, src []float32, draws []uint16)
}

// SplitRegistry and Split24Registry hold the conversions of every tier, with rests of 16 and of 8 bits.
var (
	SplitRegistry   cpu.Registry[Splits[int16]]
	Split24Registry cpu.Registry[Splits[int8]]
)

func init() {
	SplitRegistry.Add(cpu.Go, Splits[int16]{Join: join[int16], Split: split})
	Split24Registry.Add(cpu.Go, Splits[int8]{join[int8], split24, split24Stochastic})
}

func join[R int8 | int16](dst []float32, upper []snug.BFloat16, rest []R) {
	upper, rest = upper[:len(dst)], rest[:len(dst)]
	shift := 16 - 8*unsafe.Sizeof(*new(R))
	for i := range dst {
		dst[i] = math.Float32frombits(uint32(upper[i])<<16 + uint32(int32(rest[i])<<shift))
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
