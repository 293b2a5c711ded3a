package gemm

import (
	"cmp"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
)

// Kernel is what a tier does on float32. A panel of B has NR columns, [k][NR];
// what stands in columns beyond the last of B is arbitrary, as they reach no
// element of C.
type Kernel struct {
	MR, NR int // rows and columns of a full tile; NR divides maxCols
	Lanes  int // divides NR; B is read up to the next multiple of it

	// Columns says that Mul is faster on contiguous columns of A than on rows, so much that it pays to transpose.
	Columns bool

	// Strip is how many panels of A are prepared together, 0 for stripPanels.
	Strip int

	// Mul sets c to alpha·a·b + beta·c for tiles of rows×cols, at most MR×NR,
	// which lie below one another in c and nextA apart in a, and a depth of at least 1. It does not read c
	// if beta is 0. Rows of b and c are contiguous.
	Mul func(tiles, rows, cols, depth int, alpha float32, a strided, nextA int, b strided, beta float32, c strided)

	// CopyRows copies rows of cols elements of src, rowSrc apart
	// from element at on, to rows of float32, rowDst apart, in pieces of NR
	// floats, which in dst lie piece apart. It may write up to NR-1 floats
	// beyond a row, before it writes the next.
	CopyRows func(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, piece int)

	// PackLines transposes up to NR lines of depth floats, lineSrc apart, into
	// the rows of a panel, rowDst apart, which is room for the lines rounded up to a multiple of
	// Lanes. It may write up to 15 rows beyond the panel.
	PackLines func(dst, src []float32, lines, depth, lineSrc, rowDst int)

	// Pairs multiplies bfloat16, where that is faster than as float32.
	Pairs *Pairs

	// Dots multiplies few rows of A, where packing B would take longer; nil: it is packed.
	Dots Dots
}

func (k *Kernel) strip() int { return cmp.Or(k.Strip, stripPanels) }

// Registry holds the kernels of every tier.
var Registry cpu.Registry[Kernel]

func init() {
	Registry.Add(cpu.Go, Kernel{MR: 2, NR: panelGo, Lanes: 1, Mul: mul, CopyRows: copyRows, PackLines: packLines})
}

// mul is the micro-kernel of the Go tier.
func mul(tiles, rows, cols, depth int, alpha float32, a strided, nextA int, b strided, beta float32, c strided) {
	for t := range tiles {
		mulTile(rows, cols, depth, alpha, strided{a.x[t*nextA:], a.row, a.col}, b, beta, c.at(t*rows, 0))
	}
}

func mulTile(rows, cols, depth int, alpha float32, a, b strided, beta float32, c strided) {
	if rows == 2 && cols == 4 {
		mul2x4(depth, alpha, a, b, beta, c)
		return
	}
	for i := range rows {
		for j := range cols {
			var sum float32
			for k := range depth {
				sum += a.x[i*a.row+k*a.col] * b.x[k*b.row+j]
			}
			c.add(i, j, alpha*sum, beta)
		}
	}
}

// mul2x4 keeps the sums of a full tile in registers.
func mul2x4(depth int, alpha float32, a, b strided, beta float32, c strided) {
	var c00, c01, c02, c03, c10, c11, c12, c13 float32
	for k := range depth {
		a0, a1 := a.x[k*a.col], a.x[k*a.col+a.row]
		r := b.x[k*b.row:][:4]
		c00 += a0 * r[0]
		c01 += a0 * r[1]
		c02 += a0 * r[2]
		c03 += a0 * r[3]
		c10 += a1 * r[0]
		c11 += a1 * r[1]
		c12 += a1 * r[2]
		c13 += a1 * r[3]
	}
	for j, sum := range [4]float32{c00, c01, c02, c03} {
		c.add(0, j, alpha*sum, beta)
	}
	for j, sum := range [4]float32{c10, c11, c12, c13} {
		c.add(1, j, alpha*sum, beta)
	}
}

// add sets element (i, j) to x + beta times itself.
func (s strided) add(i, j int, x, beta float32) {
	at := &s.x[i*s.row+j*s.col]
	if beta == 0 {
		*at = x
	} else {
		*at = x + beta**at
	}
}

// panelGo is NR of the Go tier.
const panelGo = 4

func copyRows(dst []float32, src snug.View, at, rows, cols, rowSrc, rowDst, piece int) {
	switch src.DType() {
	case snug.F32:
		convertRows(dst, src.Float32s()[at:], rows, cols, rowSrc, rowDst, piece, func(x float32) float32 { return x })
	case snug.F16:
		convertRows(dst, src.Float16s()[at:], rows, cols, rowSrc, rowDst, piece, half.F16ToFloat32)
	case snug.BF16:
		convertRows(dst, src.BFloat16s()[at:], rows, cols, rowSrc, rowDst, piece, snug.BFloat16.Float32)
	}
}

func convertRows[T any](dst []float32, src []T, rows, cols, rowSrc, rowDst, piece int, convert func(T) float32) {
	for i := range rows {
		for j, x := range src[i*rowSrc:][:cols] {
			dst[i*rowDst+j/panelGo*piece+j%panelGo] = convert(x)
		}
	}
}

func packLines(dst, src []float32, lines, depth, lineSrc, rowDst int) {
	for j := range lines {
		for k, x := range src[j*lineSrc:][:depth] {
			dst[k*rowDst+j] = x
		}
	}
}
