//go:build !noasm && gc

package nibble

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	encode2 := encoderOf(encodeAVX2, func(f *Format) *[16]float32 { return &f.Limits })
	encode512 := encoderOf(encodeAVX512, func(f *Format) *[16]float64 { return &f.bounds })
	two := Kernels{
		encode2, decoderOf(decodeF32AVX2, decodeF32),
		decoder16[snug.Float16](decodeF16AVX2, decodeF16), decoder16[snug.BFloat16](decodeBF16AVX2, decodeBF16),
	}
	wide := Kernels{
		encode512, decoderOf(decodeF32AVX512, decodeF32),
		decoder16[snug.Float16](decodeF16AVX512, decodeF16), decoder16[snug.BFloat16](decodeBF16AVX512, decodeBF16),
	}
	Registry.Add(cpu.AVX2, two)
	Registry.Add(cpu.AVX512, wide)
	Streams.Add(cpu.AVX2, Kernels{
		encode2, streamed(decoderOf(decodeF32StreamAVX2, decodeF32), two.DecodeF32),
		streamed(decoder16[snug.Float16](decodeF16StreamAVX2, decodeF16), two.DecodeF16),
		streamed(decoder16[snug.BFloat16](decodeBF16StreamAVX2, decodeBF16), two.DecodeBF16),
	})
	Streams.Add(cpu.AVX512, Kernels{
		encode512, streamed(decoderOf(decodeF32StreamAVX512, decodeF32), wide.DecodeF32),
		streamed(decoder16[snug.Float16](decodeF16StreamAVX512, decodeF16), wide.DecodeF16),
		streamed(decoder16[snug.BFloat16](decodeBF16StreamAVX512, decodeBF16), wide.DecodeBF16),
	})
}

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

// align is what x must be aligned to, in bytes, for loops around the caches.
const align = 64

// streamed makes a decoder that goes around the caches where it can.
func streamed[T any](stream, cached Decoder[T]) Decoder[T] {
	return func(x []T, packed []uint8, absmax []float32, block int, f *Format) {
		if uintptr(unsafe.Pointer(unsafe.SliceData(x)))%align != 0 {
			cached(x, packed, absmax, block, f)
			return
		}
		stream(x, packed, absmax, block, f)
		fence()
	}
}
