package ortho

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// gram returns the products of the rows of a random matrix, row i of which has the size 0.9^i.
func gram(n int, seed uint64) []float32 {
	x, a := kerneltest.Normal(seed, n*n), make([]float32, n*n)
	for i := range n {
		for j := range n {
			sum := 0.0
			for k := range n {
				sum += float64(x[i*n+k]) * float64(x[j*n+k])
			}
			a[i*n+j] = float32(sum * math.Pow(0.9, float64(i+j)))
		}
	}
	return a
}

// quadratic returns qᵀ·a·q in float64, and requires that the columns of q are orthonormal.
func quadratic(t *testing.T, q, a []float32, n int) []float64 {
	t.Helper()
	aq, all := make([]float64, n*n), make([]float64, n*n)
	for i := range n {
		for j := range n {
			for k := range n {
				aq[i*n+j] += float64(a[i*n+k]) * float64(q[k*n+j])
			}
		}
	}
	for i := range n {
		for j := range n {
			along := 0.0
			for k := range n {
				all[i*n+j] += float64(q[k*n+i]) * aq[k*n+j]
				along += float64(q[k*n+i]) * float64(q[k*n+j])
			}
			want := 0.0
			if i == j {
				want = 1
			}
			require.InDelta(t, want, along, 1e-5, "columns %d and %d of %d", i, j, n)
		}
	}
	return all
}

// outside returns the largest magnitude off the diagonal, and requires a descending diagonal.
func outside(t *testing.T, all []float64, n int) (most float64) {
	t.Helper()
	for i := range n {
		for j := range n {
			if i != j {
				most = max(most, math.Abs(all[i*n+j]))
			}
		}
		if i > 0 {
			require.LessOrEqual(t, all[i*n+i], all[(i-1)*n+i-1]+1e-5*all[0])
		}
	}
	return most
}

// TestEigenvectors: the vectors make a matrix diagonal with descending values, and those of another matrix come nearer to
// that with every refresh, whose order is that of the columns.
func TestEigenvectors(t *testing.T) {
	for _, n := range []int{1, 2, 7, 40} {
		floats, doubles := EigenWork(n)
		work, more := make([]float32, floats), make([]float64, doubles)
		a, q := gram(n, 1), make([]float32, n*n)
		require.True(t, Eigenvectors(q, a, n, more))
		all := quadratic(t, q, a, n)
		require.LessOrEqual(t, outside(t, all, n), 1e-5*all[0])

		other, before := gram(n, 2), math.Inf(1)
		for i := range 40 {
			old := slices.Clone(q)
			values := quadratic(t, q, other, n)
			order := make([]int64, n)
			Refresh(q, other, n, order, work, more)
			for j := 1; j < n; j++ {
				require.GreaterOrEqual(t, values[int(order[j-1])*(n+1)], values[int(order[j])*(n+1)]-1e-5*values[0])
			}
			if i == 39 && n > 1 {
				last := quadratic(t, q, other, n)
				along := 0.0
				for k := range n {
					along += float64(q[k*n]) * float64(old[k*n+int(order[0])])
				}
				require.InDelta(t, 1, math.Abs(along), 1e-4, "the leading vector stays")
				require.Less(t, math.Abs(last[1]), max(1e-4*last[0], before))
			}
		}
	}
}

// TestEigenvectorsOfZeros: a matrix without any has orthonormal ones.
func TestEigenvectorsOfZeros(t *testing.T) {
	const n = 5
	floats, doubles := EigenWork(n)
	q, zeros := make([]float32, n*n), make([]float32, n*n)
	require.True(t, Eigenvectors(q, zeros, n, make([]float64, doubles)))
	quadratic(t, q, zeros, n)
	order := make([]int64, n)
	Refresh(q, zeros, n, order, make([]float32, floats), make([]float64, doubles))
	require.Equal(t, []int64{0, 1, 2, 3, 4}, order)
	quadratic(t, q, zeros, n)
}

// TestEigenvectorsOfAnyWorkers: the bits are the same for any GOMAXPROCS, also where products are parallel.
func TestEigenvectorsOfAnyWorkers(t *testing.T) {
	const n = 200
	floats, doubles := EigenWork(n)
	a, b := gram(n, 1), gram(n, 2)
	run := func(workers int) string {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
		q := make([]float32, n*n)
		require.True(t, Eigenvectors(q, a, n, make([]float64, doubles)))
		order := make([]int64, n)
		Refresh(q, b, n, order, make([]float32, floats), make([]float64, doubles))
		return fmt.Sprint(order, q)
	}
	require.Equal(t, run(1), run(3))
}
