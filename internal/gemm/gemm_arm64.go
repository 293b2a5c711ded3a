//go:build !noasm && gc

package gemm

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

func init() {
	Registry.Add(cpu.NEON, Kernel{
		MR: rowsNEON, NR: vectorsNEON * lanesNEON, Lanes: lanesNEON,
		Mul: multiplyNEON, CopyRows: copyRowsNEON, PackLines: packNEON,
	})
}

// The largest tile.
const (
	rowsNEON    = 6
	vectorsNEON = 4
	lanesNEON   = 4
)

func multiplyNEON(tiles, rows, cols, depth int, alpha float32, a strided, nextA int, b strided, beta float32, c strided) {
	full := (cols - 1) / lanesNEON * lanesNEON // floats before the last vector
	for t := range tiles {
		to := c.at(t*rows, 0)
		mulNEON(&a.x[t*nextA], &b.x[0], &to.x[0], rows, 4*full, cols-full, depth, 4*a.row, 4*a.col, 4*b.row, 4*c.row, alpha, beta)
	}
}

// copiesNEON are by the number of the type; see [place].
var copiesNEON = [...]func(dst *float32, src *byte, rows, cols, rowSrc, rowDst, piece int){copyRowsF32NEON, copyRowsF16NEON, copyRowsBF16NEON}

func copyRowsNEON(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, piece int) {
	from, kind := place(src, at)
	copiesNEON[kind](&dst[0], from, rows, cols, src.DType().Size()*rowSrc, 4*rowDst, 4*piece)
}

func packNEON(dst, src []float32, lines, depth, lineSrc, rowDst int) {
	for j := 0; j < lines; j += lanesNEON {
		packLinesNEON(&dst[j], &src[j*lineSrc], min(lanesNEON, lines-j), depth, 4*lineSrc, 4*rowDst)
	}
}
