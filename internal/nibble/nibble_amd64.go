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
	Dots.Add(cpu.AVX2, Product{dotOf(byPlanes(dot1xAVX2), byPlanes(dot2xAVX2), byValues(dot4xAVX2), byValues(dot8xAVX2)), true})
	Dots.Add(cpu.AVX512, Product{Dot: dotOf(byValues(dot1xAVX512), byValues(dot2xAVX512), byValues(dot4xAVX512), byValues(dot8xAVX512))})
	Axpys.Add(cpu.AVX2, axpyOf(2, axpy1xAVX2, axpy2xAVX2, axpy4xAVX2, axpy8xAVX2))
	Axpys.Add(cpu.AVX512, axpyOf(4, axpy1xAVX512, axpy2xAVX512, axpy4xAVX512, axpy8xAVX512))
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

// byValues makes a dotRows of a loop that looks up the values of a format.
func byValues(loop func(y *float32, rowY int, x *float32, stride int, packed *uint8, skip int, absmax *float32, skipAbsmax, lines, blocks, block int, values *[16]float32)) dotRows {
	return func(y *float32, rowY int, x *float32, stride int, packed *uint8, skip int, absmax *float32, skipAbsmax, lines, blocks, block int, f *Format) {
		loop(y, rowY, x, stride, packed, skip, absmax, skipAbsmax, lines, blocks, block, &f.Values)
	}
}

// byPlanes makes one of a loop that looks up their bytes.
func byPlanes(loop func(y *float32, rowY int, x *float32, stride int, packed *uint8, skip int, absmax *float32, skipAbsmax, lines, blocks, block int, planes *[64]uint8)) dotRows {
	return func(y *float32, rowY int, x *float32, stride int, packed *uint8, skip int, absmax *float32, skipAbsmax, lines, blocks, block int, f *Format) {
		loop(y, rowY, x, stride, packed, skip, absmax, skipAbsmax, lines, blocks, block, &f.planes)
	}
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
