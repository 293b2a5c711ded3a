//go:build !noasm && gc

package gemm

import (
	"unsafe"

	"github.com/klauspost/cpuid/v2"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	narrow := newKernel(6, 8, mulAVX2, copies{copyRowsF32AVX2, copyRowsF16AVX2, copyRowsBF16AVX2}, packLinesAVX2)
	narrow.Dots = newDots(8, dotsAVX2)
	Registry.Add(cpu.AVX2, narrow)
	wide := newKernel(14, 16, mulAVX512, copies{copyRowsF32AVX512, copyRowsF16AVX512, copyRowsBF16AVX512}, packLinesAVX512)
	wide.Dots = newDots(16, dotsAVX512)
	Registry.Add(cpu.AVX512, wide)
	// Intel's processors do dot products at half the rate of FMA.
	if limit, _ := cpu.Limit(); !cpuid.CPU.IsVendor(cpuid.Intel) || limit == cpu.AVX512BF16 {
		wide.Pairs = dotPairs()
		Registry.Add(cpu.AVX512BF16, wide)
	}
	wide.Pairs = amxPairs()
	Registry.Add(cpu.AMX, wide)
}

// micro multiplies for tiles of rows with before bytes, of 0 or 1 vectors, and last floats. Distances are in bytes.
type micro = func(a, b, c *float32, tiles, rows, before, last, depth, rowA, colA, nextA, rowB, rowC int, alpha, beta float32)

// copies are the copying loops by the type of their source.
type copies struct {
	f32       func(dst, src *float32, rows, cols, rowSrc, rowDst, piece int)
	f16, bf16 func(dst *float32, src *uint16, rows, cols, rowSrc, rowDst, piece int)
}

// newKernel makes a Kernel of assembly for vectors of lanes floats.
func newKernel(
	mr, lanes int,
	mul micro,
	copy copies,
	packLines func(dst, src *float32, lines, depth, lineSrc, rowDst int),
) Kernel {
	return Kernel{
		MR: mr, NR: 2 * lanes, Lanes: lanes,
		Mul: func(tiles, rows, cols, depth int, alpha float32, a strided, nextA int, b strided, beta float32, c strided) {
			full := (cols - 1) / lanes // vectors before the last
			mul(&a.x[0], &b.x[0], &c.x[0], tiles, rows, 4*lanes*full, cols-lanes*full, depth,
				4*a.row, 4*a.col, 4*nextA, 4*b.row, 4*c.row, alpha, beta)
		},
		CopyRows: func(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, piece int) {
			switch src.DType() {
			case snug.F32:
				copy.f32(&dst[0], &src.Float32s()[at], rows, cols, 4*rowSrc, 4*rowDst, 4*piece)
			case snug.F16:
				copy.f16(&dst[0], (*uint16)(unsafe.Pointer(&src.Float16s()[at])), rows, cols, 2*rowSrc, 4*rowDst, 4*piece)
			case snug.BF16:
				copy.bf16(&dst[0], (*uint16)(unsafe.Pointer(&src.BFloat16s()[at])), rows, cols, 2*rowSrc, 4*rowDst, 4*piece)
			}
		},
		PackLines: func(dst, src []float32, lines, depth, lineSrc, rowDst int) {
			for j := 0; j < lines; j += lanes {
				packLines(&dst[j], &src[j*lineSrc], min(lanes, lines-j), depth, 4*lineSrc, 4*rowDst)
			}
		},
	}
}

// dotLoop multiplies rows of x with lines of b. Distances are in bytes.
type dotLoop[T any] = func(y, x *float32, b *T, lines, steps, rowY, rowX, lineB int)

// dots are the loops of one row and of few rows by the type of B. A step is four vectors for one
// row, and 64 bytes for few, which divides it.
type dots struct {
	f32       [2]dotLoop[float32]
	f16, bf16 [2]dotLoop[uint16]
}

var (
	dotsAVX2 = dots{
		[2]dotLoop[float32]{dots1F32AVX2, dots4F32AVX2},
		[2]dotLoop[uint16]{dots1F16AVX2, dots4F16AVX2},
		[2]dotLoop[uint16]{dots1BF16AVX2, dots4BF16AVX2},
	}
	dotsAVX512 = dots{
		[2]dotLoop[float32]{dots1F32AVX512, dots4F32AVX512},
		[2]dotLoop[uint16]{dots1F16AVX512, dots4F16AVX512},
		[2]dotLoop[uint16]{dots1BF16AVX512, dots4BF16AVX512},
	}
)

// newDots makes Dots of loops for vectors of lanes floats.
func newDots(lanes int, d dots) Dots {
	return func(y, x []float32, b Matrix, at, rows, lines, depth, rowY, rowX int) int {
		step, loop := 4*lanes, 0
		if rows == few {
			step, loop = lanes*lanes/8, 1
		}
		steps := depth / step
		switch b.Data.DType() {
		case snug.F32:
			d.f32[loop](&y[0], &x[0], &b.Data.Float32s()[at], lines, steps, 4*rowY, 4*rowX, 4*b.Stride)
		case snug.F16:
			d.f16[loop](&y[0], &x[0], (*uint16)(unsafe.Pointer(&b.Data.Float16s()[at])), lines, steps, 4*rowY, 4*rowX, 2*b.Stride)
		case snug.BF16:
			d.bf16[loop](&y[0], &x[0], (*uint16)(unsafe.Pointer(&b.Data.BFloat16s()[at])), lines, steps, 4*rowY, 4*rowX, 2*b.Stride)
		}
		return steps * step
	}
}
