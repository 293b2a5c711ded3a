// Package gemm multiplies matrices of float32, binary16 and bfloat16 with
// float32 accumulation.
//
// This is the scheme of Goto and van de Geijn, "Anatomy of High-Performance
// Matrix Multiplication" (ACM TOMS 2008). The result is cut into tiles and the
// depth into blocks, by shape alone. B is packed as float32 in panels, in the
// order in which the micro-kernel reads them: for large products once for all
// workers, for others by the worker that needs it, or not at all. A is read
// where it lies, or copied as it lies, since the micro-kernel takes it by two
// strides. The order of every sum is fixed by the shape, so results do not
// depend on GOMAXPROCS.
//
// Products of bfloat16 with bfloat16 go another way on processors that multiply
// them by pairs; see [Pairs]. In products of few rows, as in generating
// text, B is not packed if its transpose lies there; see [Dots].
package gemm

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// Matrix is an operand in host memory: row-major, with Stride elements from a
// row to the next. With Trans set, Data holds the transpose of the operand.
// The caller checks that every addressed element lies in Data and that
// the element type is floating-point.
type Matrix struct {
	Data   snug.View
	Stride int
	Trans  bool
}

func (m Matrix) isFloat32() bool { return m.Data.DType() == snug.F32 }

func (m Matrix) transposed() Matrix {
	m.Trans = !m.Trans
	return m
}

// floats returns a matrix of float32 where it lies.
func (m Matrix) floats() strided {
	if m.Trans {
		return strided{m.Data.Float32s(), 1, m.Stride}
	}
	return strided{m.Data.Float32s(), m.Stride, 1}
}

// strided is a float32 matrix with element (i, j) at x[i·row + j·col].
type strided struct {
	x        []float32
	row, col int
}

// at returns the part of s from element (i, j) on.
func (s strided) at(i, j int) strided {
	s.x = s.x[i*s.row+j*s.col:]
	return s
}

// args is a product that is under way.
type args struct {
	kern        *Kernel
	m, n, k     int
	alpha, beta float32
	a, b, c     Matrix
	pairs, few  bool // see [Pairs] and [Dots]; else layout says how
	layout
}

var tiles = cpu.NewTask(func(g *args, item int) { g.tile(item) })

// Mul computes C = alpha·A·B + beta·C for A of m×k, B of k×n and C of m×n, in
// parallel. C may not overlap A or B and is not transposed. With beta 0, C is
// not read. It allocates nothing beyond ScratchBytes a worker and SharedBytes.
//
// An element of C has an absolute error of at most
// (k+3)·2^-24·(|alpha|·Σ|a||b| + |beta·c|) before it is rounded to C's type,
// unless float32 overflows or underflows. Where both operands are bfloat16,
// subnormal values may count as 0.
func Mul(m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) {
	if m <= 0 || n <= 0 {
		return
	}
	g := newArgs(Registry.Best(), m, n, k, alpha, a, b, beta, c)
	g.parallel()
}

// MulSerial is Mul on the calling goroutine, for use inside a parallel loop.
// Its results have the same bits. It allocates nothing beyond ScratchBytes, and
// PairsBytes for bfloat16.
func MulSerial(m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) {
	if m <= 0 || n <= 0 {
		return
	}
	g := newArgs(Registry.Best(), m, n, k, alpha, a, b, beta, c)
	g.serial()
}

func newArgs(kern *Kernel, m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) args {
	g := args{kern: kern, m: m, n: n, k: k, alpha: alpha, beta: beta, a: a, b: b, c: c}
	if g.few = g.takesFew(); g.few {
		return g
	}
	if g.pairs = g.takesPairs(); g.pairs {
		return g
	}
	swapped := transposes(m, n, a, b)
	if swapped {
		g.m, g.n, g.a, g.b = n, m, b.transposed(), a.transposed()
	}
	g.layout = newLayout(kern, g.m, g.n, k, swapped, c.Data.DType())
	return g
}

func (g *args) parallel() {
	switch {
	case g.few:
		g.runFew(true)
	case g.pairs:
		g.runPairs(true)
	case g.shares:
		g.shared()
	case g.tiles() == 1:
		g.tile(0)
	default:
		tiles.Run(g.tiles(), *g)
	}
}

func (g *args) serial() {
	if g.few {
		g.runFew(false)
		return
	}
	if g.pairs {
		g.runPairs(false)
		return
	}
	for i := range g.tiles() {
		g.tile(i)
	}
}
