// Package nibble is the arithmetic of blockwise 4-bit quantization. Two codes
// share a byte, the first in its upper half. Every block except the last has a
// multiple of 32 elements, so no byte belongs to two blocks. The package runs on
// the calling goroutine and allocates nothing. All tiers give the same bits.
package nibble

import (
	"math"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/cpu"
)

// Step divides the size of every block except the last, in elements.
const Step = 32

// Kernels are the loops of one tier over the len(absmax) blocks of x. The last
// block may be partial.
type Kernels struct {
	// Encode writes the absmax of every block and the codes of x. Where absmax is
	// 0, or NaN because the block has a non-finite element, all codes are the code of
	// 0. When the length of x is odd, the second half of the last byte is too.
	Encode func(packed []uint8, absmax, x []float32, block int, f *Format)
	// The decoders write Values[code]·absmax, rounded to the type of x.
	DecodeF32  Decoder[float32]
	DecodeF16  Decoder[snug.Float16]
	DecodeBF16 Decoder[snug.BFloat16]
}

// Decoder writes the values of the codes of x.
type Decoder[T any] func(x []T, packed []uint8, absmax []float32, block int, f *Format)

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

// Streams holds loops whose decoders keep x out of the caches where they can.
var Streams cpu.Registry[Kernels]

func init() {
	Registry.Add(cpu.Go, reference)
	Streams.Add(cpu.Go, reference)
}

// Decode decodes to a floating-point host view, with Streams if stream.
func Decode(x snug.View, packed []uint8, absmax []float32, block int, f *Format, stream bool) {
	k := Registry.Best()
	if stream {
		k = Streams.Best()
	}
	switch x.DType() {
	case snug.F32:
		k.DecodeF32(x.Float32s(), packed, absmax, block, f)
	case snug.F16:
		k.DecodeF16(x.Float16s(), packed, absmax, block, f)
	case snug.BF16:
		k.DecodeBF16(x.BFloat16s(), packed, absmax, block, f)
	}
}

// Format is the 16 values that codes stand for, and how to find the nearest.
type Format struct {
	Values [16]float32 // by code
	// Limits are the midpoints of neighbours among the sorted values in float32, as a
	// binary search tree by levels: the root at 1, the children of k at 2k and
	// 2k+1. x is above as many of them as there are codes before its own.
	Limits [16]float32
	// bounds are, in the same places, the least upper bounds of the quotients that
	// round to a limit or less: halfway to the next float32. Times an absmax they are
	// exact in float64. No x is equal to that, since a bound has 25 bits; that next to
	// a limit of 0 has one, but a quotient on it rounds to 0.
	bounds [16]float64
	keys   [16]int64 // the limits, as order gives them
	planes [64]uint8 // the lowest bytes of the values, then those above them, and so on
	Codes  [16]uint8 // by the rank of their values; of two equal ones the lower is first
}

// NewFormat returns the format of values, whose midpoints are 0 or not subnormal.
func NewFormat(values [16]float32) *Format {
	return newFormat(values, func(a, b float32) float32 { return (a + b) / 2 })
}

// NewNearestFormat is NewFormat with limits that are rounded down, not to nearest, so
// that a quotient gets the code of the value that is nearest as a real number, the
// lower of two as near.
func NewNearestFormat(values [16]float32) *Format { return newFormat(values, blockq.FloorMidpoint) }

// NewEvenFormat is NewFormat for values where even is true of one of two neighbours: a quotient equal to their
// midpoint gets its code. Of 0 and -0 the latter is the lower one. Only Code knows that, and no Encode.
func NewEvenFormat(values [16]float32, even func(v float32) bool) *Format {
	return newFormat(values, func(a, b float32) float32 {
		switch mid := (a + b) / 2; {
		case a == b:
			return a
		case even(b):
			return math.Nextafter32(mid, -math.MaxFloat32)
		default:
			return mid
		}
	})
}

func newFormat(values [16]float32, midpoint func(a, b float32) float32) *Format {
	f := &Format{Values: values}
	for c := range f.Codes {
		f.Codes[c] = uint8(c)
		for b := range 4 {
			f.planes[16*b+c] = uint8(math.Float32bits(values[c]) >> (8 * b))
		}
	}
	slices.SortStableFunc(f.Codes[:], func(a, b uint8) int {
		switch {
		case values[a] < values[b]:
			return -1
		case values[a] > values[b]:
			return 1
		}
		return int(math.Float32bits(values[b])>>31) - int(math.Float32bits(values[a])>>31)
	})
	rank := 0
	f.plant(1, &rank, midpoint)
	return f
}

// plant sets the limits of the tree at k, in order. The first is the limit above the
// value of rank.
func (f *Format) plant(k int, rank *int, midpoint func(a, b float32) float32) {
	if k >= len(f.Limits) {
		return
	}
	f.plant(2*k, rank, midpoint)
	f.Limits[k] = midpoint(f.Values[f.Codes[*rank]], f.Values[f.Codes[*rank+1]])
	f.keys[k] = order(f.Limits[k])
	f.bounds[k] = (float64(f.Limits[k]) + float64(math.Nextafter32(f.Limits[k], 2))) / 2
	*rank++
	f.plant(2*k+1, rank, midpoint)
}

// order returns the bits of x, turned such that they ascend with the value.
func order(x float32) int64 {
	bits := int32(math.Float32bits(x))
	return int64(bits ^ int32(uint32(bits>>31)>>1))
}

// Code returns the code of x, which is absmax times a number from -1 to 1.
func (f *Format) Code(x, absmax float32) uint8 {
	q := float32(0)
	if absmax > 0 {
		q = x / absmax
	}
	k, key := 1, order(q)
	for k < len(f.keys) {
		k = 2*k + int(uint64(f.keys[k]-key)>>63) // 1 where q is above, without a branch
	}
	return f.Codes[k-len(f.Limits)]
}
