package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
)

var dtypes = []snug.DType{snug.F32, snug.F16, snug.BF16}

func view(dt snug.DType, vals []float32) snug.View {
	var v snug.View
	switch dt {
	case snug.F32:
		v = snug.ViewOf(make([]float32, len(vals)))
	case snug.F16:
		v = snug.ViewOf(make([]snug.Float16, len(vals)))
	case snug.BF16:
		v = snug.ViewOf(make([]snug.BFloat16, len(vals)))
	}
	half.Store(v, 0, vals)
	return v
}

func floats(v snug.View) []float32 {
	out := make([]float32, v.Len())
	half.Load(out, v, 0)
	return out
}

// random makes a rows×cols matrix with a stride of cols+pad, stored transposed
// when trans.
func random(rng *rand.Rand, dt snug.DType, rows, cols, pad int, trans bool) Matrix {
	if trans {
		rows, cols = cols, rows
	}
	vals := make([]float32, rows*(cols+pad))
	for i := range vals {
		vals[i] = float32(rng.NormFloat64())
	}
	return Matrix{view(dt, vals), cols + pad, trans}
}

// at returns element (i, j) of the operand.
func (m Matrix) at(i, j int) float64 {
	if m.Trans {
		i, j = j, i
	}
	var x [1]float32
	half.Load(x[:], m.Data, i*m.Stride+j)
	return float64(x[0])
}

// eps is half the distance between 1 and the next number.
var eps = map[snug.DType]float64{snug.F32: 0x1p-24, snug.F16: 0x1p-11, snug.BF16: 0x1p-8}

// checkProduct compares c with the product in float64, by gonum. The bound is
// the forward error of a float32 sum of k products, (k+3)·2⁻²⁴·Σ|a||b|, and
// one rounding to c's type.
func checkProduct(t *testing.T, m, n, k int, alpha float32, a, b Matrix, beta float32, before, c Matrix) {
	t.Helper()
	same := func(x float64) float64 { return x }
	want := product(a.dense(m, k, same), b.dense(k, n, same))
	size := product(a.dense(m, k, math.Abs), b.dense(k, n, math.Abs))
	for i := range m {
		for j := range n {
			sum, abs := float64(alpha)*want.At(i, j), math.Abs(float64(alpha))*size.At(i, j)
			if beta != 0 {
				x := float64(beta) * before.at(i, j)
				sum, abs = sum+x, abs+math.Abs(x)
			}
			bound := float64(k+3)*0x1p-24*abs + eps[c.Data.DType()]*math.Abs(sum)*1.001 + 0x1p-24
			if d := math.Abs(sum - c.at(i, j)); !(d <= bound) {
				t.Fatalf("element %d,%d of %dx%dx%d: %g, want %g ± %g", i, j, m, n, k, c.at(i, j), sum, bound)
			}
		}
	}
}

// dense returns f of the elements of the operand. gonum has no matrices
// without elements, so a depth of 0 becomes 1, of zeros.
func (m Matrix) dense(rows, cols int, f func(float64) float64) *mat.Dense {
	d := mat.NewDense(max(rows, 1), max(cols, 1), nil)
	for i := range rows {
		for j := range cols {
			d.Set(i, j, f(m.at(i, j)))
		}
	}
	return d
}

func product(a, b *mat.Dense) *mat.Dense {
	var c mat.Dense
	c.Mul(a, b)
	return &c
}

func TestMulAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	shapes := [][3]int{{1, 1, 1}, {1, 5, 3}, {7, 1, 9}, {2, 4, 0}, {3, 130, 17}, {65, 129, 257}, {64, 128, 256}, {130, 33, 300}}
	for tier, kern := range Registry.All() {
		for _, s := range shapes {
			m, n, k := s[0], s[1], s[2]
			for range 6 {
				dt := func() snug.DType { return dtypes[rng.IntN(3)] }
				a := random(rng, dt(), m, k, rng.IntN(3), rng.IntN(2) == 0)
				b := random(rng, dt(), k, n, rng.IntN(3), rng.IntN(2) == 0)
				c := random(rng, dt(), m, n, rng.IntN(3), false)
				alpha, beta := float32(rng.NormFloat64()), float32(rng.IntN(3)-1)
				if rng.IntN(2) == 0 {
					alpha = 1
				}
				before := Matrix{view(c.Data.DType(), floats(c.Data)), c.Stride, false}
				g := newArgs(kern, m, n, k, alpha, a, b, beta, c)

				for i := range g.tiles() {
					g.tile(i)
				}
				t.Run(fmt.Sprintf("%v/%v", tier, s), func(t *testing.T) {
					checkProduct(t, m, n, k, alpha, a, b, beta, before, c)
				})
				for i := range m { // the gaps between rows are untouched
					for j := n; j < c.Stride; j++ {
						require.Equal(t, before.at(i, j), c.at(i, j))
					}
				}
			}
		}
	}
}

// With beta 0, whatever stood in C is not read.
func TestBetaZeroIgnoresNaN(t *testing.T) {
	nan := float32(math.NaN())
	c := Matrix{snug.ViewOf([]float32{nan, nan}), 2, false}
	one := Matrix{snug.ViewOf([]float32{2, 3}), 2, false}
	Mul(1, 2, 1, 1, Matrix{snug.ViewOf([]float32{5}), 1, false}, one, 0, c)
	require.Equal(t, []float32{10, 15}, c.Data.Float32s())
	Mul(1, 2, 0, 1, one, one, 0, c)
	require.Equal(t, []float32{0, 0}, c.Data.Float32s())
}

func TestDeterministicForAnyWorkerCount(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const m, n, k = 200, 300, 700
	a, b := random(rng, snug.BF16, m, k, 0, true), random(rng, snug.F32, k, n, 1, false)
	var want []float32
	for _, procs := range []int{1, 2, 5} {
		old := runtime.GOMAXPROCS(procs)
		c := random(rand.New(rand.NewPCG(5, 6)), snug.F32, m, n, 0, false)
		Mul(m, n, k, 0.5, a, b, 1, c)
		runtime.GOMAXPROCS(old)
		if want == nil {
			want = c.Data.Float32s()
		}
		require.Equal(t, want, c.Data.Float32s())
	}
	c := random(rand.New(rand.NewPCG(5, 6)), snug.F32, m, n, 0, false)
	MulSerial(m, n, k, 0.5, a, b, 1, c)
	require.Equal(t, want, c.Data.Float32s())
}

func TestMulAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	a, b := random(rng, snug.BF16, 70, 70, 0, true), random(rng, snug.F16, 70, 200, 1, false)
	c := random(rng, snug.F32, 70, 200, 0, false)
	kerneltest.NoAllocs(t, func() { Mul(70, 200, 70, 1, a, b, 0, c) })
}

func BenchmarkMul(b *testing.B) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		for _, n := range []int{32, 64, 128, 512, 1024} {
			x, y := random(rng, dt, n, n, 0, false), random(rng, dt, n, n, 0, true)
			c := random(rng, dt, n, n, 0, false)
			b.Run(fmt.Sprintf("%v/%v/%d", Registry.Tier(), dt, n), func(b *testing.B) {
				for b.Loop() {
					Mul(n, n, n, 1, x, y, 0, c)
				}
				b.ReportMetric(float64(b.N)*2*float64(n)*float64(n)*float64(n)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
