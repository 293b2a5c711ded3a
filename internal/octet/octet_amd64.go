//go:build !noasm && gc

package octet

import (
	"unsafe"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// The loops are in the order of the formats: E4M3, E5M2, Int8.
func init() {
	Registry.Add(cpu.AVX2, Kernels{
		decoder(decodeF32, decodeF32E4M3AVX2, decodeF32E5M2AVX2, decodeF32Int8AVX2),
		decoder16[snug.Float16](decodeF16, decodeF16E4M3AVX2, decodeF16E5M2AVX2, decodeF16Int8AVX2),
		decoder16[snug.BFloat16](decodeBF16, decodeBF16E4M3AVX2, decodeBF16E5M2AVX2, decodeBF16Int8AVX2),
		dotOf(
			[4]dotRows{dot1xE4M3AVX2, dot2xE4M3AVX2, dot4xE4M3AVX2, dot8xE4M3AVX2},
			[4]dotRows{dot1xE5M2AVX2, dot2xE5M2AVX2, dot4xE5M2AVX2, dot8xE5M2AVX2},
			[4]dotRows{dot1xInt8AVX2, dot2xInt8AVX2, dot4xInt8AVX2, dot8xInt8AVX2},
		),
		axpyOf(2,
			[4]axpyRows{axpy1xE4M3AVX2, axpy2xE4M3AVX2, axpy4xE4M3AVX2, axpy8xE4M3AVX2},
			[4]axpyRows{axpy1xE5M2AVX2, axpy2xE5M2AVX2, axpy4xE5M2AVX2, axpy8xE5M2AVX2},
			[4]axpyRows{axpy1xInt8AVX2, axpy2xInt8AVX2, axpy4xInt8AVX2, axpy8xInt8AVX2},
		),
	})
	Registry.Add(cpu.AVX512, Kernels{
		decoder(decodeF32, decodeF32E4M3AVX512, decodeF32E5M2AVX512, decodeF32Int8AVX512),
		decoder16[snug.Float16](decodeF16, decodeF16E4M3AVX512, decodeF16E5M2AVX512, decodeF16Int8AVX512),
		decoder16[snug.BFloat16](decodeBF16, decodeBF16E4M3AVX512, decodeBF16E5M2AVX512, decodeBF16Int8AVX512),
		dotOf(
			[4]dotRows{dot1xE4M3AVX512, dot2xE4M3AVX512, dot4xE4M3AVX512, dot8xE4M3AVX512},
			[4]dotRows{dot1xE5M2AVX512, dot2xE5M2AVX512, dot4xE5M2AVX512, dot8xE5M2AVX512},
			[4]dotRows{dot1xInt8AVX512, dot2xInt8AVX512, dot4xInt8AVX512, dot8xInt8AVX512},
		),
		axpyOf(4,
			[4]axpyRows{axpy1xE4M3AVX512, axpy2xE4M3AVX512, axpy4xE4M3AVX512, axpy8xE4M3AVX512},
			[4]axpyRows{axpy1xE5M2AVX512, axpy2xE5M2AVX512, axpy4xE5M2AVX512, axpy8xE5M2AVX512},
			[4]axpyRows{axpy1xInt8AVX512, axpy2xInt8AVX512, axpy4xInt8AVX512, axpy8xInt8AVX512},
		),
	})
}

// decodeBlocks is a loop over whole blocks, at least one, of a multiple of [Step] elements.
type decodeBlocks[T any] func(x *T, codes *uint8, scales *float32, blocks, block int, factor float32)

// dotRows is a loop for a number of rows of x, over n codes, at least Step.
type dotRows func(y, x *float32, stride int, codes *uint8, n int)

// axpyRows is one for rows of y.
type axpyRows func(y, a *float32, codes *uint8, stride, n int)

// decoder makes a decoder of a loop for each format. What is no multiple of Step elements in a block is left to the
// slow loop.
func decoder[T any](slow Decoder[T], loops ...decodeBlocks[T]) Decoder[T] {
	return func(x []T, codes []uint8, scales []float32, block int, f *Format) {
		fast := loops[f.loops]
		if blocks := len(x) / block; blocks > 0 && block%Step == 0 {
			n := blocks * block
			_, _ = codes[n-1], scales[blocks-1]
			fast(&x[0], &codes[0], &scales[0], blocks, block, f.Factor)
			x, codes, scales = x[n:], codes[n:], scales[blocks:]
		}
		for b := range scales {
			size := min(block, len(x))
			n := size / Step * Step
			if n > 0 {
				_ = codes[n-1]
				fast(&x[0], &codes[0], &scales[b], 1, n, f.Factor)
			}
			slow(x[n:size], codes[n:size], scales[b:b+1], block, f)
			x, codes = x[size:], codes[size:]
		}
	}
}

// decoder16 is decoder for types of 16 bits.
func decoder16[T snug.Float16 | snug.BFloat16](slow Decoder[T], loops ...decodeBlocks[uint16]) Decoder[T] {
	typed := make([]decodeBlocks[T], len(loops))
	for i, fast := range loops {
		typed[i] = func(x *T, codes *uint8, scales *float32, blocks, block int, factor float32) {
			fast((*uint16)(unsafe.Pointer(x)), codes, scales, blocks, block, factor)
		}
	}
	return decoder(slow, typed...)
}

// dotOf makes a Dot of loops for 1, 2, 4 and 8 rows of each format.
func dotOf(loops ...[4]dotRows) Dot {
	return func(y, x []float32, stride int, codes []uint8, f *Format) {
		n := len(codes)
		if n == 0 {
			clear(y)
			return
		}
		_ = x[(len(y)-1)*stride+n-1]
		for r := 0; r < len(y); {
			size := sizeOf(len(y) - r)
			loops[f.loops][size](&y[r], &x[r*stride], stride, &codes[0], n)
			r += 1 << size
		}
	}
}

// axpyOf makes an Axpy of loops likewise, each for a number of vectors. The Go loop adds the others.
func axpyOf(vectors int, loops ...[4]axpyRows) Axpy {
	return func(y, a []float32, rows int, codes []uint8, stride int, f *Format) {
		n, loop := len(y)/rows, loops[f.loops][sizeOf(rows)]
		for n > 0 && len(a) >= vectors*rows {
			_ = codes[(vectors-1)*stride+n-1]
			loop(&y[0], &a[0], &codes[0], stride, n)
			a, codes = a[vectors*rows:], codes[min(vectors*stride, len(codes)):]
		}
		axpy(y, a, rows, codes, stride, f)
	}
}

// sizeOf returns which of the loops takes most of the rows that are left.
func sizeOf(rows int) int {
	size := 0
	for size < 3 && 2<<size <= rows {
		size++
	}
	return size
}
