//go:build !noasm && gc && (amd64 || arm64)

package nibble

import (
	"unsafe"

	"github.com/snug-ml/snug"
)

// encoderOf makes an encoder of an assembly loop over whole blocks, at least one,
// of a multiple of Step elements. The Go loop does the rest.
func encoderOf[L any](fast func(packed *uint8, absmax *float32, x *float32, blocks, block int, limits *L, codes *[16]uint8), limits func(f *Format) *L) func([]uint8, []float32, []float32, int, *Format) {
	return func(packed []uint8, absmax, x []float32, block int, f *Format) {
		blocks := len(x) / block
		if blocks > 0 {
			_, _ = packed[blocks*block/2-1], absmax[blocks-1]
			fast(&packed[0], &absmax[0], &x[0], blocks, block, limits(f), &f.Codes)
		}
		encode(packed[blocks*block/2:], absmax[blocks:], x[blocks*block:], block, f)
	}
}

// decoderOf makes a decoder likewise.
func decoderOf[T any](fast func(x *T, packed *uint8, absmax *float32, blocks, block int, values *[16]float32), slow Decoder[T]) Decoder[T] {
	return func(x []T, packed []uint8, absmax []float32, block int, f *Format) {
		blocks := len(x) / block
		if blocks > 0 {
			_, _ = packed[blocks*block/2-1], absmax[blocks-1]
			fast(&x[0], &packed[0], &absmax[0], blocks, block, &f.Values)
		}
		slow(x[blocks*block:], packed[blocks*block/2:], absmax[blocks:], block, f)
	}
}

// decoder16 is decoderOf for types of 16 bits.
func decoder16[T snug.Float16 | snug.BFloat16](fast func(x *uint16, packed *uint8, absmax *float32, blocks, block int, values *[16]float32), slow Decoder[T]) Decoder[T] {
	return decoderOf(func(x *T, packed *uint8, absmax *float32, blocks, block int, values *[16]float32) {
		fast((*uint16)(unsafe.Pointer(x)), packed, absmax, blocks, block, values)
	}, slow)
}
