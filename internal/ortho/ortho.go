// Package ortho makes matrices nearly orthogonal.
package ortho

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/sweep"
)

// The steps of [NewtonSchulz] and the factors of X, X·Xᵀ·X and (X·Xᵀ)²·X, from
// Jordan et al. 2024, "An optimizer for hidden layers in neural networks", who chose them for a
// steep start. eps is the minimum norm.
const (
	steps   = 5
	factor1 = 3.4445
	factor3 = -4.7750
	factor5 = 2.0315
	eps     = 1e-7
)

// minStrip is the least part of a matrix that is multiplied at a time, in elements, if
// it has as many.
const minStrip = 1 << 16

// Work returns how many elements of scratch [NewtonSchulz] takes: with the smaller side k,
// k² + min(rows·cols, max(k², k·⌊65536/k⌋)).
func Work(rows, cols int) int {
	k := min(rows, cols)
	return k*k + strip(rows, cols)*k
}

// strip returns how many rows of a tall matrix, or columns of a wide one, are
// multiplied at a time. It is at least the smaller side, 0 for an empty matrix.
func strip(rows, cols int) int {
	k := min(rows, cols)
	if k == 0 {
		return 0
	}
	return min(max(rows, cols), max(k, minStrip/k))
}

// NewtonSchulz replaces x, a row-major matrix of float32, by nearly U·Vᵀ of its singular
// value decomposition U·S·Vᵀ. It divides x by the root of the sum of its squares, or by
// 1e-7 if that is larger, and computes five times
//
//	X ← 3.4445·X - 4.7750·(X·Xᵀ)·X + 2.0315·(X·Xᵀ)²·X
//
// in float32, with XᵀX on the other side of tall matrices. Singular values of at least 0.003
// times the norm end between 0.65 and 1.25, and smaller ones grow about 480
// times. x is finite. work has at least [Work] elements of float32 on the device of x. On the
// CPU products need the memory of [gemm.Mul]. Other devices queue the work, with
// the products of [gemm.Grids].
func NewtonSchulz(x snug.View, rows, cols int, work snug.View) error {
	return device.Run(x.Device(), job{x: x, work: work, rows: rows, cols: cols})
}

// job is NewtonSchulz.
type job struct {
	x, work    snug.View
	rows, cols int
}

func (*job) Kernel() string { return "ortho.newton_schulz" }

func (j *job) Operands(yield func(*driver.Mem)) { device.Each(yield, &j.x, &j.work) }

func (j job) Run() {
	k := min(j.rows, j.cols)
	if k == 0 {
		return
	}
	norm := math.Sqrt(sweep.Squares(j.x, 0, j.x.Len()))
	sweep.Scale(j.x, 0, j.x.Len(), float32(1/max(norm, eps)))
	work := j.work.Float32s()
	m := matrix{x: j.x.Float32s(), rows: j.rows, cols: j.cols, k: k, b: work[:k*k], gram: work[k*k:][:strip(j.rows, j.cols)*k]}
	for range steps {
		m.polynomial()
		m.multiply()
	}
}

// matrix is x with scratch.
type matrix struct {
	x             []float32
	rows, cols, k int
	b             []float32 // k×k: factor1·I + factor3·A + factor5·A²
	gram          []float32 // A of k×k, then a strip of the product
}

// square is a k×k operand.
func (m *matrix) square(x []float32) gemm.Matrix {
	return gemm.Matrix{Data: snug.SliceView(x[:m.k*m.k]), Stride: m.k}
}

// polynomial sets b. A is X·Xᵀ, or Xᵀ·X of a tall matrix.
func (m *matrix) polynomial() {
	k := m.k
	left := gemm.Matrix{Data: snug.SliceView(m.x), Stride: m.cols}
	right := left
	if m.rows > m.cols {
		left.Trans = true
	} else {
		right.Trans = true
	}
	a, b := m.square(m.gram), m.square(m.b)
	gemm.Mul(k, k, max(m.rows, m.cols), 1, left, right, 0, a)
	for i, x := range m.gram[:k*k] {
		m.b[i] = factor3 * x
	}
	for i := 0; i < len(m.b); i += k + 1 {
		m.b[i] += factor1
	}
	gemm.Mul(k, k, k, factor5, a, a, 1, b)
}

// multiply replaces X by B·X, or a tall one by X·B, strip by strip through the memory
// of A.
func (m *matrix) multiply() {
	k, width, n := m.k, len(m.gram)/m.k, max(m.rows, m.cols)
	b := m.square(m.b)
	for lo := 0; lo < n; lo += width {
		w := min(width, n-lo)
		product := m.gram[:w*k]
		if m.rows > m.cols {
			x := m.x[lo*k:][:w*k]
			gemm.Mul(w, k, k, 1, gemm.Matrix{Data: snug.SliceView(x), Stride: k}, b, 0, gemm.Matrix{Data: snug.SliceView(product), Stride: k})
			copy(x, product)
			continue
		}
		x := gemm.Matrix{Data: snug.SliceView(m.x[lo:]), Stride: n}
		gemm.Mul(k, w, k, 1, b, x, 0, gemm.Matrix{Data: snug.SliceView(product), Stride: w})
		for i := range k {
			copy(m.x[i*n+lo:][:w], product[i*w:])
		}
	}
}
