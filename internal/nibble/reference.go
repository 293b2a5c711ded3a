package nibble

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/blockq"
	"github.com/snug-ml/snug/internal/half"
)

var reference = Kernels{encode, decodeF32, decodeF16, decodeBF16}

func encode(packed []uint8, absmax, x []float32, block int, f *Format) {
	for b := range absmax {
		n := min(block, len(x))
		absmax[b] = encodeBlock(packed, x[:n], f)
		x, packed = x[n:], packed[(n+1)/2:]
	}
}

// encodeBlock writes the codes of a block and returns its absmax.
func encodeBlock(packed []uint8, x []float32, f *Format) float32 {
	const magnitude = 0x7fffffff // the bits of a float32 but its sign
	top := uint32(0)
	for _, v := range x {
		top = max(top, math.Float32bits(v)&magnitude)
	}
	absmax := blockq.FromMagnitude(top)
	encodeWith(packed, x, absmax, f)
	return absmax
}

func encodeWith(packed []uint8, x []float32, absmax float32, f *Format) {
	for len(x) > 1 {
		packed[0] = f.Code(x[0], absmax)<<4 | f.Code(x[1], absmax)
		x, packed = x[2:], packed[1:]
	}
	if len(x) == 1 {
		packed[0] = f.Code(x[0], absmax)<<4 | f.Code(0, 0)
	}
}

func decodeF32(x []float32, packed []uint8, absmax []float32, block int, f *Format) {
	decode(x, packed, absmax, block, f, func(v float32) float32 { return v })
}

func decodeF16(x []snug.Float16, packed []uint8, absmax []float32, block int, f *Format) {
	decode(x, packed, absmax, block, f, half.Float32ToF16)
}

func decodeBF16(x []snug.BFloat16, packed []uint8, absmax []float32, block int, f *Format) {
	decode(x, packed, absmax, block, f, snug.ToBFloat16)
}

// decode rounds the 16 values of a block once.
func decode[T any](x []T, packed []uint8, absmax []float32, block int, f *Format, round func(float32) T) {
	for _, a := range absmax {
		var values [16]T
		for c, v := range f.Values {
			values[c] = round(v * a)
		}
		n := min(block, len(x))
		for i := range n / 2 {
			x[2*i], x[2*i+1] = values[packed[i]>>4], values[packed[i]&15]
		}
		if n%2 != 0 {
			x[n-1] = values[packed[n/2]>>4]
		}
		x, packed = x[n:], packed[(n+1)/2:]
	}
}
