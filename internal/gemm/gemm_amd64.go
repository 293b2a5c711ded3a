//go:build !noasm && gc

package gemm

import (
	"github.com/klauspost/cpuid/v2"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	narrow := loops{6, 8, mulAVX2, copyRowsAVX2, packLinesAVX2, dots1AVX2, dots4AVX2}.kernel()
	narrow.Columns, narrow.Strip = true, 9
	Registry.Add(cpu.AVX2, narrow)
	wide := loops{14, 16, mulAVX512, copyRowsAVX512, packLinesAVX512, dots1AVX512, dots4AVX512}.kernel()
	Registry.Add(cpu.AVX512, wide)
	// Intel's processors do dot products at half the rate of FMA.
	if limit, _ := cpu.Limit(); !cpuid.CPU.IsVendor(cpuid.Intel) || limit == cpu.AVX512BF16 {
		wide.Pairs = dotPairs()
		Registry.Add(cpu.AVX512BF16, wide)
	}
	wide.Pairs = amxPairs()
	Registry.Add(cpu.AMX, wide)
}

// loops are the assembly of a tier. Distances are in bytes.
type loops struct {
	mr, lanes int // rows of a tile, floats of a vector

	// mul multiplies for tiles of rows with before bytes, of 0 or 1 vectors, and last floats.
	mul       func(a, b, c *float32, tiles, rows, before, last, depth, rowA, colA, nextA, rowB, rowC int, alpha, beta float32)
	copyRows  func(dst *float32, src *byte, kind, rows, cols, rowSrc, rowDst, piece int)
	packLines func(dst, src *float32, lines, depth, lineSrc, rowDst int)

	// Rows of x are multiplied with lines of b: one, by steps of four vectors, or few, by steps of 64 bytes, which
	// divide that.
	dots1, dotsFew func(y, x *float32, b *byte, kind, lines, steps, rowY, rowX, lineB int)
}

func (l loops) kernel() Kernel {
	return Kernel{
		MR: l.mr, NR: 2 * l.lanes, Lanes: l.lanes,
		Mul: func(tiles, rows, cols, depth int, alpha float32, a strided, nextA int, b strided, beta float32, c strided) {
			full := (cols - 1) / l.lanes * l.lanes // floats before the last vector
			l.mul(&a.x[0], &b.x[0], &c.x[0], tiles, rows, 4*full, cols-full, depth,
				4*a.row, 4*a.col, 4*nextA, 4*b.row, 4*c.row, alpha, beta)
		},
		CopyRows: func(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, piece int) {
			from, kind := place(src, at)
			l.copyRows(&dst[0], from, kind, rows, cols, src.DType().Size()*rowSrc, 4*rowDst, 4*piece)
		},
		PackLines: func(dst, src []float32, lines, depth, lineSrc, rowDst int) {
			for j := 0; j < lines; j += l.lanes {
				l.packLines(&dst[j], &src[j*lineSrc], min(l.lanes, lines-j), depth, 4*lineSrc, 4*rowDst)
			}
		},
		Dots: func(y, x []float32, b Matrix, at, rows, lines, depth, rowY, rowX int) int {
			step, loop := 4*l.lanes, l.dots1
			if rows == few {
				step, loop = l.lanes*l.lanes/8, l.dotsFew
			}
			from, kind := place(b.Data, at)
			loop(&y[0], &x[0], from, kind, lines, depth/step, 4*rowY, 4*rowX, b.Data.DType().Size()*b.Stride)
			return depth / step * step
		},
	}
}
