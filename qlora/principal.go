package qlora

import (
	"fmt"
	"math/rand/v2"

	"gonum.org/v1/gonum/blas/blas64"
	"gonum.org/v1/gonum/lapack/lapack64"
	"gonum.org/v1/gonum/mat"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// principal is the part of a matrix with its largest singular values.
type principal struct {
	left, right mat.Dense // [out, k] and [in, k]: singular vectors in columns
	values      []float64 // descending
}

// decompose returns all singular values of a row-major matrix.
func decompose(w []float32, out, in int) (*principal, error) {
	return singular(mat.NewDense(out, in, float64s(w)))
}

func singular(a mat.Matrix) (*principal, error) {
	var svd mat.SVD
	if !svd.Factorize(a, mat.SVDThin) {
		return nil, fmt.Errorf("the singular values of the matrix did not converge: %w", snug.ErrNonFinite)
	}
	p := &principal{values: svd.Values(nil)}
	svd.UTo(&p.left)
	svd.VTo(&p.right)
	return p, nil
}

func float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// oversampling is the number of dimensions of a subspace beyond those that are wanted.
const oversampling = 8

// approximate returns about the r largest singular values of a row-major matrix W: those of W in a subspace that
// begins at random and is multiplied by Wᵀ·W so many times. A direction of the singular value σ converges with
// (σ'/σ)^(2·iterations), where σ' is the largest value beyond the subspace.
func approximate(w []float32, out, in, r, iterations int) (*principal, error) {
	k := min(r+oversampling, out, in)
	room := make([]float64, max(in, out)*k)
	rng := rand.New(rand.NewPCG(uint64(out), uint64(in)))
	v, u, whole := make([]float32, in*k), make([]float32, out*k), snug.ViewOf(w)
	for i := range v {
		v[i] = float32(rng.NormFloat64())
	}
	orthogonalize(v, in, k, room)
	for i := 0; ; i++ {
		if err := amp.MatMul(snug.ViewOf(u), whole, snug.ViewOf(v), amp.MatMulOptions{M: out, N: k, K: in}); err != nil {
			return nil, err
		}
		orthogonalize(u, out, k, room)
		if i == iterations {
			break
		}
		if err := amp.MatMul(snug.ViewOf(v), whole, snug.ViewOf(u), amp.MatMulOptions{M: in, N: k, K: out, TransA: true}); err != nil {
			return nil, err
		}
		orthogonalize(v, in, k, room)
	}
	small := make([]float32, k*in) // Uᵀ·W
	if err := amp.MatMul(snug.ViewOf(small), snug.ViewOf(u), whole, amp.MatMulOptions{M: k, N: in, K: out, TransA: true}); err != nil {
		return nil, err
	}
	if err := finite("a product with the matrix", snug.ViewOf(small)); err != nil {
		return nil, err
	}
	p, err := decompose(small, k, in)
	if err != nil {
		return nil, err
	}
	var left mat.Dense
	left.Mul(mat.NewDense(out, k, float64s(u)), &p.left)
	p.left = left
	return p, nil
}

// orthogonalize replaces the columns of a row-major matrix, of at least as many rows as columns, by orthogonal ones of
// length 1 with the same spans: Q of its decomposition Q·R. room has as many elements as x, or more.
func orthogonalize(x []float32, rows, cols int, room []float64) {
	q := blas64.General{Rows: rows, Cols: cols, Stride: cols, Data: room[:len(x)]}
	for i, v := range x {
		q.Data[i] = float64(v)
	}
	tau, size := make([]float64, cols), make([]float64, 1)
	lapack64.Geqrf(q, tau, size, -1)
	work := make([]float64, int(size[0]))
	lapack64.Geqrf(q, tau, work, len(work))
	lapack64.Orgqr(q, tau, size, -1)
	if n := int(size[0]); n > len(work) {
		work = make([]float64, n)
	}
	lapack64.Orgqr(q, tau, work, len(work))
	for i, v := range q.Data {
		x[i] = float32(v)
	}
}
