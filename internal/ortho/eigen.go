package ortho

import (
	"cmp"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/lapack"
	"gonum.org/v1/gonum/lapack/lapack64"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
)

// blocked is how many times the side of a matrix LAPACK has as scratch, for its blocks of 32 columns.
const blocked = 34

// EigenWork returns how many elements of scratch [Eigenvectors] and [Refresh] take for a matrix of n×n. Only Refresh
// takes those of float32.
func EigenWork(n int) (floats, doubles int) { return n * n, n*n + (1+blocked)*n }

// Eigenvectors sets the columns of q, of n×n elements, to the eigenvectors of a symmetric matrix a of the same size,
// by descending eigenvalues, and says whether it found them. Signs are arbitrary. It works in float64, and reads the
// elements of a on its diagonal and above. The result does not depend on the number of workers. Products of more than
// 64 columns allocate.
func Eigenvectors(q, a []float32, n int, doubles []float64) bool {
	s := blas64.Symmetric{N: n, Stride: n, Uplo: blas.Upper, Data: doubles[:n*n]}
	for i, v := range a[:n*n] {
		s.Data[i] = float64(v)
	}
	values, work := doubles[n*n:][:n], doubles[n*n+n:][:blocked*n]
	if !lapack64.Syev(lapack.EVCompute, s, values, work, len(work)) {
		return false
	}
	for i := range n {
		for j := range n {
			q[i*n+j] = float32(s.Data[i*n+n-1-j])
		}
	}
	return true
}

// Refresh replaces the columns of q, which are nearly eigenvectors of a symmetric matrix a of n×n elements, by better
// ones: the orthonormal factor of a·q, whose columns are sorted before by descending qᵀ·a·q. This is one step of the
// power iteration. It sets order, of n elements, to which column of q was each of the new ones. The result does not depend
// on the number of workers. Products of more than 64 columns allocate.
func Refresh(q, a []float32, n int, order []int64, floats []float32, doubles []float64) {
	y := floats[:n*n]
	gemm.Mul(n, n, n, 1, gemm.Matrix{Data: snug.SliceView(a[:n*n]), Stride: n}, gemm.Matrix{Data: snug.SliceView(q[:n*n]), Stride: n}, 0,
		gemm.Matrix{Data: snug.SliceView(y), Stride: n})
	values := doubles[n*n:][:n]
	clear(values)
	for i := range n {
		for j := range n {
			values[j] += float64(q[i*n+j]) * float64(y[i*n+j])
		}
	}
	for i := range order[:n] {
		order[i] = int64(i)
	}
	slices.SortStableFunc(order[:n], func(i, j int64) int { return cmp.Compare(values[j], values[i]) })
	d := blas64.General{Rows: n, Cols: n, Stride: n, Data: doubles[:n*n]}
	for i := range n {
		for j, from := range order[:n] {
			d.Data[i*n+j] = float64(y[i*n+int(from)])
		}
	}
	work := doubles[n*n+n:][:blocked*n]
	lapack64.Geqrf(d, values, work, len(work))
	lapack64.Orgqr(d, values, work, len(work))
	for i, v := range d.Data {
		q[i] = float32(v)
	}
}
