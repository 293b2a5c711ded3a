package ortho

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/gemm"
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

// TestEigenvectorsOfBlocks has matrices of several blocks: of full rank, of a low one, and with equal eigenvalues.
func TestEigenvectorsOfBlocks(t *testing.T) {
	const n = 150
	low := make([]float32, n*n) // rank 3
	for k := range 3 {
		x := kerneltest.Normal(uint64(k+9), n)
		for i := range n {
			for j := range n {
				low[i*n+j] += x[i] * x[j]
			}
		}
	}
	equal := make([]float32, n*n)
	for i := range n {
		equal[i*n+i] = float32(1 + i%2)
	}
	for name, a := range map[string][]float32{"full": gram(n, 1), "low": low, "equal": equal} {
		t.Run(name, func(t *testing.T) {
			floats, doubles := EigenWork(n)
			q, work, more, order := make([]float32, n*n), make([]float32, floats), make([]float64, doubles), make([]int64, n)
			require.True(t, Eigenvectors(q, a, n, more))
			all := quadratic(t, q, a, n)
			require.LessOrEqual(t, outside(t, all, n), 1e-5*all[0])
			Refresh(q, a, n, order, work, more)
			all = quadratic(t, q, a, n)
			require.LessOrEqual(t, outside(t, all, n), 1e-5*all[0])
		})
	}
	bad := gram(n, 1)
	bad[5] = float32(math.NaN())
	_, doubles := EigenWork(n)
	require.False(t, Eigenvectors(make([]float32, n*n), bad, n, make([]float64, doubles)))
}

// TestComplete: the first columns span what they did, one after the other, and the others complete a basis, also where
// columns are zeros, equal, tiny or large.
func TestComplete(t *testing.T) {
	const n, k = 100, 70
	q, x := make([]float32, n*n), kerneltest.Normal(3, n*n)
	for i := range n {
		for j := range n {
			v := x[i*n+j]
			switch j {
			case 3, 40:
				v = 0
			case 50:
				v = x[i*n+49]
			case 51:
				v = x[i*n+2] * (1 + 0x1p-20*x[i*n+7])
			case 60:
				v *= 1e-30
			case 61:
				v *= 1e15
			}
			q[i*n+j] = v
		}
	}
	first := slices.Clone(q)
	floats, doubles := EigenWork(n)
	Complete(q, n, k, make([]float32, floats), make([]float64, doubles))
	quadratic(t, q, make([]float32, n*n), n)
	for _, j := range []int{0, 2, 10, 49, 60, 61, 69} { // column j lies in the span of columns 0 to j
		var inside, whole float64
		for c := range j + 1 {
			along := 0.0
			for i := range n {
				along += float64(q[i*n+c]) * float64(first[i*n+j])
			}
			inside += along * along
		}
		for i := range n {
			whole += float64(first[i*n+j]) * float64(first[i*n+j])
		}
		require.InDelta(t, 1, inside/whole, 1e-4, "column %d", j)
	}
}

// BenchmarkEigen is a matrix of the size that SOAP has in a model of 20 million parameters.
func BenchmarkEigen(b *testing.B) {
	for _, n := range []int{512, 1024, 2048} {
		floats, doubles := EigenWork(n)
		q, work, more, order := make([]float32, n*n), make([]float32, floats), make([]float64, doubles), make([]int64, n)
		x, a := kerneltest.Normal(1, n*n), make([]float32, n*n)
		of := square(x, n)
		turned := of
		turned.Trans = true
		gemm.Mul(n, n, n, 1, of, turned, 0, square(a, n))
		b.Run(fmt.Sprintf("vectors/%d", n), func(b *testing.B) {
			for b.Loop() {
				require.True(b, Eigenvectors(q, a, n, more))
			}
		})
		b.Run(fmt.Sprintf("refresh/%d", n), func(b *testing.B) {
			for b.Loop() {
				Refresh(q, a, n, order, work, more)
			}
		})
	}
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
