package gonum

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"gonum.org/v1/gonum/mat"
)

// Mul sets dst to a·b, computed in a smaller type: a and b are rounded to compute, which is snug.F32, snug.BF16 or
// snug.F16, and the products are added in float32, as [amp.MatMul] says. dst may be a or b.
//
// An operand may be the transpose of a matrix, by its T method, which copies nothing beforehand. dst has the rows of a
// and the columns of b, or is empty and gets them. What float32 or the type cannot hold becomes an infinity.
//
// Errors, with nothing written: snug.ErrConfig (an operand that is no matrix in memory), snug.ErrDType, snug.ErrShape.
// Memory until it returns: a and b in their type, and 4 bytes an element of dst.
func Mul(dst *mat.Dense, a, b mat.Matrix, compute snug.DType) error {
	x, transA, err := operand("a", a, compute)
	if err != nil {
		return err
	}
	y, transB, err := operand("b", b, compute)
	if err != nil {
		return err
	}
	if dst == nil {
		return fmt.Errorf("%w: gonum.Mul: dst is nil", snug.ErrConfig)
	}
	m, k := a.Dims()
	n, cols := b.Dims()
	if k != n {
		return fmt.Errorf("%w: gonum.Mul: a is %d×%d and b %d×%d", snug.ErrShape, m, k, n, cols)
	}
	if r, c := dst.Dims(); !dst.IsEmpty() && (r != m || c != cols) {
		return fmt.Errorf("%w: gonum.Mul: dst is %d×%d, the product %d×%d", snug.ErrShape, r, c, m, cols)
	}
	product := snug.SliceView(make([]float32, m*cols))
	if err := amp.MatMul(product, x, y, amp.MatMulOptions{M: m, N: cols, K: k, TransA: transA, TransB: transB}); err != nil {
		return err
	}
	if dst.IsEmpty() && m*cols > 0 {
		dst.ReuseAs(m, cols)
	}
	return ToMatrix(dst, product)
}

// operand rounds a factor of Mul, or the matrix that it transposes.
func operand(name string, m mat.Matrix, t snug.DType) (v snug.View, transposed bool, err error) {
	for {
		of, ok := m.(mat.Transpose)
		if !ok {
			break
		}
		m, transposed = of.Matrix, !transposed
	}
	if vector, ok := m.(mat.TransposeVec); ok {
		m, transposed = vector.Vector, !transposed
	}
	r, err := rowsOf("gonum.Mul: "+name, m)
	if err != nil {
		return v, false, err
	}
	switch t {
	case snug.F32:
		v = snug.SliceView(make([]float32, r.len()))
	case snug.BF16:
		v = snug.SliceView(make([]snug.BFloat16, r.len()))
	case snug.F16:
		v = snug.SliceView(make([]snug.Float16, r.len()))
	default:
		return v, false, fmt.Errorf("%w: gonum.Mul: %v, want %v, %v or %v", snug.ErrDType, t, snug.F32, snug.BF16, snug.F16)
	}
	return v, transposed, FromMatrix(v, m)
}
