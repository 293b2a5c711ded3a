//go:build !noasm && gc

package gemm

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.NEON, Kernel{
		MR: rowsNEON, NR: vectorsNEON * lanesNEON, Lanes: lanesNEON,
		Mul: mulNEON, CopyRows: copyRowsNEON, PackLines: packNEON,
	})
}

// The largest tile.
const (
	rowsNEON    = 6
	vectorsNEON = 4
	lanesNEON   = 4
)

// microsNEON has the micro-kernels by vectors and rows. Distances are in bytes;
// last is the number of lanes of the last vectors.
var microsNEON = [vectorsNEON][rowsNEON]func(a, b, c *float32, depth, rowA, colA, rowB, rowC, last int, alpha, beta float32){
	{mul1x1NEON, mul2x1NEON, mul3x1NEON, mul4x1NEON, mul5x1NEON, mul6x1NEON},
	{mul1x2NEON, mul2x2NEON, mul3x2NEON, mul4x2NEON, mul5x2NEON, mul6x2NEON},
	{mul1x3NEON, mul2x3NEON, mul3x3NEON, mul4x3NEON, mul5x3NEON, mul6x3NEON},
	{mul1x4NEON, mul2x4NEON, mul3x4NEON, mul4x4NEON, mul5x4NEON, mul6x4NEON},
}

func mulNEON(tiles, rows, cols, depth int, alpha float32, a strided, nextA int, b strided, beta float32, c strided) {
	full := (cols - 1) / lanesNEON // vectors before the last
	micro := microsNEON[full][rows-1]
	for t := range tiles {
		to := c.at(t*rows, 0)
		micro(&a.x[t*nextA], &b.x[0], &to.x[0], depth, 4*a.row, 4*a.col, 4*b.row, 4*c.row, cols-full*lanesNEON, alpha, beta)
	}
}

func copyRowsNEON(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, piece int) {
	switch src.DType() {
	case snug.F32:
		copyRowsF32NEON(&dst[0], &src.Float32s()[at], rows, cols, 4*rowSrc, 4*rowDst, 4*piece)
	case snug.F16:
		copyRowsF16NEON(&dst[0], &src.Float16s()[at], rows, cols, 2*rowSrc, 4*rowDst, 4*piece)
	case snug.BF16:
		copyRowsBF16NEON(&dst[0], &src.BFloat16s()[at], rows, cols, 2*rowSrc, 4*rowDst, 4*piece)
	}
}

func packNEON(dst, src []float32, lines, depth, lineSrc, rowDst int) {
	for j := 0; j < lines; j += lanesNEON {
		packLinesNEON(&dst[j], &src[j*lineSrc], min(lanesNEON, lines-j), depth, 4*lineSrc, 4*rowDst)
	}
}
