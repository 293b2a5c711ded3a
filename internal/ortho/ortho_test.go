package ortho

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

func normal(n int, seed uint64) []float32 {
	r, x := rand.New(rand.NewPCG(seed, 1)), make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func run(x []float32, rows, cols int) {
	j := job{x: snug.ViewOf(x), work: snug.ViewOf(make([]float32, Work(rows, cols))), rows: rows, cols: cols}
	j.Run()
}

// mapped is what happens to a singular value.
func mapped(s float64) float64 {
	for range steps {
		s = factor1*s + factor3*s*s*s + factor5*s*s*s*s*s
	}
	return s
}

// definition returns U·f(S/|x|)·Vᵀ in float64, where f acts on every singular value.
func definition(x []float32, rows, cols int) []float64 {
	a := mat.NewDense(rows, cols, nil)
	for i, v := range x {
		a.Set(i/cols, i%cols, float64(v))
	}
	norm := max(mat.Norm(a, 2), eps)
	var d mat.SVD
	if !d.Factorize(a, mat.SVDThin) {
		panic("no decomposition")
	}
	var u, v, us, o mat.Dense
	d.UTo(&u)
	d.VTo(&v)
	s := d.Values(nil)
	for i := range s {
		s[i] = mapped(s[i] / norm)
	}
	us.Mul(&u, mat.NewDiagDense(len(s), s))
	o.Mul(&us, v.T())
	return o.RawMatrix().Data
}

// requireDefinition bounds the difference by the rounding of elements, which the
// smallest singular values enlarge 3.4445⁵ = 485 times.
func requireDefinition(t require.TestingT, x []float32, rows, cols int) {
	got := append([]float32(nil), x...)
	run(got, rows, cols)
	requireNear(t, definition(x, rows, cols), got, rows, cols)
}

func requireNear(t require.TestingT, want []float64, got []float32, rows, cols int) {
	for i, w := range want {
		require.InDelta(t, w, got[i], 2e-5, "element %d of %d×%d", i, rows, cols)
	}
}

func TestNewtonSchulzIsDefinition(t *testing.T) {
	for _, s := range [][2]int{{1, 1}, {1, 9}, {9, 1}, {5, 7}, {7, 5}, {16, 16}, {33, 65}, {100, 70}, {3, 22_000}, {22_000, 3}, {100, 130}} {
		for _, scale := range []float32{1, 1e15, 1e-9} {
			if scale != 1 && s[0]*s[1] > 1000 {
				continue
			}
			x := normal(s[0]*s[1], 3)
			for i := range x {
				x[i] *= scale
			}
			requireDefinition(t, x, s[0], s[1])
		}
	}
}

// TestOnDevices has matrices of one strip and of several, with partial tiles of products.
//
//check:not arm64
func TestOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, s := range [][2]int{{1, 1}, {1, 9}, {9, 1}, {5, 7}, {7, 5}, {33, 65}, {70, 40}, {2, 40_000}, {40_000, 2}, {0, 5}} {
			for _, scale := range []float32{1, 1e15, 1e-9, 0} {
				rows, cols := s[0], s[1]
				if scale != 1 && rows*cols > 100 || !kerneltest.Full() && backend.Emulated && rows*cols > 2500 {
					continue
				}
				x := normal(rows*cols, 3)
				for i := range x {
					x[i] *= scale
				}
				there := kerneltest.Put(t, backend, x)
				work := kerneltest.Put(t, backend, make([]float32, Work(rows, cols)))
				require.NoError(t, NewtonSchulz(there.View, rows, cols, work.View))
				work.Get() // checks its guards
				want := make([]float64, len(x))
				if len(x) > 0 && scale > 0 {
					want = definition(x, rows, cols)
				}
				requireNear(t, want, there.Get(), rows, cols)
			}
		}
	})
}

// TestDeviceErrors: a device that is closed is one.
func TestDeviceErrors(t *testing.T) {
	dev, err := snug.Open("opaque:0")
	require.NoError(t, err)
	x, err := snug.Make[float32](dev, 6)
	require.NoError(t, err)
	work, err := snug.Make[float32](dev, Work(2, 3))
	require.NoError(t, err)
	views := []snug.View{x.View(), work.View()}
	require.NoError(t, dev.Close())
	require.ErrorIs(t, NewtonSchulz(views[0], 2, 3, views[1]), snug.ErrDevice)
}

func anyMatrix(t *rapid.T) {
	rows, cols := rapid.IntRange(1, 20).Draw(t, "rows"), rapid.IntRange(1, 20).Draw(t, "cols")
	x := normal(rows*cols, rapid.Uint64().Draw(t, "seed"))
	if rapid.Bool().Draw(t, "low rank") {
		for i := range x {
			x[i] = x[i%cols]
		}
	}
	requireDefinition(t, x, rows, cols)
}

func TestAnyMatrix(t *testing.T) { rapid.Check(t, anyMatrix) }
func FuzzAnyMatrix(f *testing.F) { f.Fuzz(rapid.MakeFuzz(anyMatrix)) }

// TestSingularValues has the bounds that NewtonSchulz states.
func TestSingularValues(t *testing.T) {
	low, high := math.Inf(1), 0.0
	for s := 0.003; s <= 1; s += 1e-5 {
		low, high = min(low, mapped(s)), max(high, mapped(s))
	}
	require.Greater(t, low, 0.65)
	require.Less(t, high, 1.25)
	require.InDelta(t, 485, mapped(1e-6)/1e-6, 1)
}

func TestZeroAndEmpty(t *testing.T) {
	x := make([]float32, 12)
	run(x, 3, 4)
	require.Equal(t, make([]float32, 12), x)
	for _, s := range [][2]int{{0, 0}, {0, 5}, {5, 0}} {
		require.Zero(t, Work(s[0], s[1]))
		run(nil, s[0], s[1])
	}
}

// TestWork: the scratch is that of the doc and all of it suffices.
func TestWork(t *testing.T) {
	for _, c := range []struct{ rows, cols, want int }{
		{1, 1, 2}, {4, 6, 16 + 24}, {6, 4, 16 + 24}, {1000, 1000, 2_000_000}, {256, 4096, 2 * 65536}, {2, 1 << 20, 4 + 65536},
	} {
		require.Equal(t, c.want, Work(c.rows, c.cols), fmt.Sprint(c))
	}
}

func TestWorkersDoNotMatter(t *testing.T) {
	for _, s := range [][2]int{{100, 250}, {250, 100}, {2, 50_000}} {
		do := func(workers int) []float32 {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
			x := normal(s[0]*s[1], 5)
			run(x, s[0], s[1])
			return x
		}
		require.Equal(t, do(1), do(2))
	}
}

//check:not arm64
func TestNoAllocations(t *testing.T) {
	x, work := snug.ViewOf(normal(100*200, 1)), snug.ViewOf(make([]float32, Work(100, 200)))
	kerneltest.NoAllocs(t, func() { require.NoError(t, NewtonSchulz(x, 100, 200, work)) })
}
