package gonum

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"gonum.org/v1/gonum/mat"
)

// rows is the memory of a matrix: row i starts at element i·stride, and its elements follow one another.
type rows struct {
	data       []float64
	rows, cols int
	stride     int
}

// rowsOf returns the memory of a matrix or vector, which is a column. what names it in errors.
func rowsOf(what string, m mat.Matrix) (rows, error) {
	switch m := m.(type) {
	case nil:
		return rows{}, fmt.Errorf("%w: %s is nil", snug.ErrConfig, what)
	case *mat.Dense:
		if m == nil {
			return rows{}, fmt.Errorf("%w: %s is a nil *mat.Dense", snug.ErrConfig, what)
		}
		return denseRows(m), nil
	case *mat.VecDense:
		if m == nil {
			return rows{}, fmt.Errorf("%w: %s is a nil *mat.VecDense", snug.ErrConfig, what)
		}
		return vectorRows(m), nil
	case mat.RawMatrixer:
		return denseRows(m), nil
	case mat.RawVectorer:
		return vectorRows(m), nil
	}
	return rows{}, fmt.Errorf("%w: %s: a %T has no elements of float64 in memory: want a *mat.Dense or a *mat.VecDense, such as mat.DenseCopyOf returns", snug.ErrConfig, what, m)
}

func denseRows(m mat.RawMatrixer) rows {
	r := m.RawMatrix()
	return rows{data: r.Data, rows: r.Rows, cols: r.Cols, stride: r.Stride}
}

func vectorRows(m mat.RawVectorer) rows {
	r := m.RawVector()
	return rows{data: r.Data, rows: r.N, cols: 1, stride: r.Inc}
}

func (r rows) len() int { return r.rows * r.cols }

func (r rows) at(i int) float64 { return r.data[i/r.cols*r.stride+i%r.cols] }

// runs calls f with the parts of elements lo to hi that follow one another in memory, and the number of their first
// element.
func (r rows) runs(lo, hi int, f func(at int, part []float64) error) error {
	if r.stride == r.cols {
		return f(lo, r.data[lo:hi])
	}
	for lo < hi {
		row, col := lo/r.cols, lo%r.cols
		n := min(r.cols-col, hi-lo)
		if err := f(lo, r.data[row*r.stride+col:][:n]); err != nil {
			return err
		}
		lo += n
	}
	return nil
}

// load rounds elements lo to lo+len(dst).
func (r rows) load(dst []float32, lo int) {
	_ = r.runs(lo, lo+len(dst), func(at int, part []float64) error {
		for i, x := range part {
			dst[at-lo+i] = float32(x)
		}
		return nil
	})
}

// move adds to elements lo to lo+len(to) what a step has made of them, from their rounded values.
func (r rows) move(to []float32, lo int) {
	_ = r.runs(lo, lo+len(to), func(at int, part []float64) error {
		for i, x := range part {
			part[i] = x + (float64(to[at-lo+i]) - float64(float32(x)))
		}
		return nil
	})
}

// find returns the first element that is bad, or -1.
func (r rows) find(bad func(x float64) bool) int {
	found := -1
	_ = r.runs(0, r.len(), func(at int, part []float64) error {
		for i, x := range part {
			if bad(x) {
				found = at + i
				return errFound
			}
		}
		return nil
	})
	return found
}

var errFound = errors.New("found")

// FromMatrix rounds a matrix into dst, row after row, each element once, to nearest even, as [snug.FromFloat64] does:
// what is beyond the range becomes an infinity.
//
// dst holds float32, float16 or bfloat16, as many elements as the matrix. Errors, with nothing written: snug.ErrConfig,
// snug.ErrDType, snug.ErrShape, snug.ErrDevice. It allocates nothing on the CPU.
func FromMatrix[V snug.Vector](dst V, m mat.Matrix) error {
	return transfer("FromMatrix", snug.ViewOf(dst), m, func(v snug.View, part []float64) error { return snug.FromFloat64(v, part) })
}

// ToMatrix writes the elements of src to a matrix, row after row. It is exact.
//
// src holds float32, float16 or bfloat16, as many elements as the matrix. Errors, with nothing written: snug.ErrConfig,
// snug.ErrDType, snug.ErrShape, snug.ErrDevice. It allocates nothing on the CPU, and from another device it waits.
func ToMatrix[V snug.Vector](m mat.Matrix, src V) error {
	return transfer("ToMatrix", snug.ViewOf(src), m, func(v snug.View, part []float64) error { return snug.ToFloat64(part, v) })
}

// transfer calls cast with the parts of a matrix and of a vector.
func transfer(op string, v snug.View, m mat.Matrix, cast func(snug.View, []float64) error) error {
	r, err := rowsOf("gonum."+op, m)
	if err != nil {
		return err
	}
	if v.Len() != r.len() {
		return fmt.Errorf("%w: gonum.%s: a vector of %d elements for a matrix of %d×%d", snug.ErrShape, op, v.Len(), r.rows, r.cols)
	}
	return r.runs(0, r.len(), func(at int, part []float64) error {
		piece, err := v.Slice(at, at+len(part))
		if err != nil {
			return err
		}
		return cast(piece, part)
	})
}
