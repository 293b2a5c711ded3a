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
	"github.com/snug-ml/snug/internal/limits"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"
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

// definition is a product in float64, by gonum, and the bound of its error.
type definition struct{ want, bound *mat.Dense }

// define computes the product, with the forward error of a float32 sum of k
// products, (k+3)·2⁻²⁴·Σ|a||b|, and one rounding to c's type.
func define(m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) definition {
	same := func(x float64) float64 { return x }
	d := definition{product(a.dense(m, k, same), b.dense(k, n, same)), product(a.dense(m, k, math.Abs), b.dense(k, n, math.Abs))}
	for i := range m {
		for j := range n {
			sum, abs := float64(alpha)*d.want.At(i, j), math.Abs(float64(alpha))*d.bound.At(i, j)
			if beta != 0 {
				x := float64(beta) * c.at(i, j)
				sum, abs = sum+x, abs+math.Abs(x)
			}
			d.want.Set(i, j, sum)
			d.bound.Set(i, j, float64(k+3)*0x1p-24*abs+eps[c.Data.DType()]*math.Abs(sum)*1.001+0x1p-24)
		}
	}
	return d
}

// check compares c with the definition.
func (d definition) check(t require.TestingT, c Matrix) {
	m, n := d.want.Dims()
	for i := range m {
		for j := range n {
			if e := math.Abs(d.want.At(i, j) - c.at(i, j)); !(e <= d.bound.At(i, j)) {
				require.Failf(t, "too far off", "element %d,%d of %dx%d: %g, want %g ± %g", i, j, m, n, c.at(i, j), d.want.At(i, j), d.bound.At(i, j))
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

// checkTiers checks one product of every tier against the definition, and that
// both ways to run it give the same bits and leave the gaps between rows alone.
func checkTiers(t *testing.T, m, n, k int, alpha float32, a, b Matrix, beta float32, c Matrix) {
	t.Helper()
	d := define(m, n, k, alpha, a, b, beta, c)
	for tier, kern := range Registry.All() {
		got, serial := c.clone(), c.clone()
		g := newArgs(kern, m, n, k, alpha, a, b, beta, got)
		g.parallel()
		g = newArgs(kern, m, n, k, alpha, a, b, beta, serial)
		g.serial()
		t.Run(fmt.Sprintf("%v/%dx%dx%d", tier, m, n, k), func(t *testing.T) {
			d.check(t, got)
			require.Equal(t, floats(got.Data), floats(serial.Data))
			for i := range m {
				for j := n; j < c.Stride; j++ {
					require.Equal(t, c.at(i, j), got.at(i, j), "a gap between rows")
				}
			}
		})
	}
}

func (m Matrix) clone() Matrix {
	m.Data = view(m.Data.DType(), floats(m.Data))
	return m
}

// rounds returns n, or 1 in short tests: the definition is slow.
func rounds(n int) int {
	if !kerneltest.Full() {
		return 1
	}
	return n
}

func TestMulAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	shapes := [][3]int{
		{1, 1, 1}, {1, 5, 3}, {7, 1, 9}, {2, 4, 0}, {3, 130, 17}, {65, 129, 257}, {64, 128, 256}, {130, 33, 300},
		{5, 300, 520}, {300, 7, 270}, {32, 2, 32}, {240, 270, 260}, {230, 24, 40},
	}
	for _, s := range shapes {
		m, n, k := s[0], s[1], s[2]
		for range rounds(6) {
			dt := func() snug.DType { return dtypes[rng.IntN(3)] }
			a := random(rng, dt(), m, k, rng.IntN(3), rng.IntN(2) == 0)
			b := random(rng, dt(), k, n, rng.IntN(3), rng.IntN(2) == 0)
			c := random(rng, dt(), m, n, rng.IntN(3), false)
			alpha, beta := float32(rng.NormFloat64()), float32(rng.IntN(3)-1)
			if rng.IntN(2) == 0 {
				alpha = 1
			}
			checkTiers(t, m, n, k, alpha, a, b, beta, c)
		}
	}
}

// Every order of the operands, far rows, and steps that share the panels of B: more columns, a greater depth and
// more rows than one step takes.
//
//check:not arm64
func TestLargeAgainstDefinition(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	sizes := [][3]int{{231, 1100, 300}, {240, 530, 1030}, {4600, 140, 60}}
	for i := range 4 * rounds(len(sizes)) {
		s := sizes[i/4]
		m, n, k := s[0], s[1], s[2]
		a := random(rng, snug.F32, m, k, 400, i&1 != 0)
		b := random(rng, dtypes[i%3], k, n, 1, i&2 != 0)
		c := random(rng, snug.F32, m, n, 2, false)
		g := newArgs(Registry.Best(), m, n, k, 1, a, b, 1, c)
		require.True(t, g.shares)
		got := c.clone()
		d := define(m, n, k, 1, a, b, 1, c)
		Mul(m, n, k, 1, a, b, 1, got)
		d.check(t, got)
		MulSerial(m, n, k, 1, a, b, 1, c)
		require.Equal(t, floats(c.Data), floats(got.Data))
	}
}

// FuzzMul compares every tier with the definition for random shapes.
func FuzzMul(f *testing.F) { f.Fuzz(rapid.MakeFuzz(checkRandom)) }

func TestRandomShapes(t *testing.T) { rapid.Check(t, checkRandom) }

func checkRandom(t *rapid.T) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	side := rapid.IntRange(1, 70)
	m, n, k := side.Draw(t, "m"), side.Draw(t, "n"), rapid.IntRange(0, 300).Draw(t, "k")
	operand := func(name string, rows, cols int, trans bool) Matrix {
		dt := rapid.SampledFrom(dtypes).Draw(t, name)
		return random(rng, dt, rows, cols, rapid.IntRange(0, 40).Draw(t, name+" gap"), trans)
	}
	a := operand("a", m, k, rapid.Bool().Draw(t, "aT"))
	b := operand("b", k, n, rapid.Bool().Draw(t, "bT"))
	c := operand("c", m, n, false)
	alpha, beta := float32(rng.NormFloat64()), rapid.SampledFrom([]float32{0, 1, -0.5}).Draw(t, "beta")
	d := define(m, n, k, alpha, a, b, beta, c)
	for _, kern := range Registry.All() {
		got, serial := c.clone(), c.clone()
		g := newArgs(kern, m, n, k, alpha, a, b, beta, got)
		g.parallel()
		g = newArgs(kern, m, n, k, alpha, a, b, beta, serial)
		g.serial()
		d.check(t, got)
		require.Equal(t, floats(got.Data), floats(serial.Data))
	}
}

// NaN and infinity reach the elements they belong to and no others, and
// denormals count.
func TestSpecialValues(t *testing.T) {
	const n = 37 // ragged in every tier
	for tier, kern := range Registry.All() {
		for _, trans := range []bool{false, true} {
			a, b, c := Matrix{Stride: n}, Matrix{Stride: n, Trans: trans}, Matrix{Stride: n}
			x, y, z := make([]float32, n*n), make([]float32, n*n), make([]float32, n*n)
			for i := range n {
				x[i*n+i], y[i*n+i] = 1, 1
			}
			y[0] = 0x1p-149
			y[n*n-1] = float32(math.Inf(-1))
			y[2*n+2] = float32(math.NaN())
			a.Data, b.Data, c.Data = snug.ViewOf(x), snug.ViewOf(y), snug.ViewOf(z)
			g := newArgs(kern, n, n, n, 1, a, b, 0, c)
			g.serial()
			require.Equal(t, float32(0x1p-149), z[0], tier)
			require.Equal(t, float32(math.Inf(-1)), z[n*n-1], tier)
			for i, v := range z {
				switch row, col := i/n, i%n; {
				case col == 2 || col == n-1 && row != n-1: // NaN, and 0·Inf
					require.True(t, v != v, "%v: element %d,%d", tier, row, col)
				case row == col && row != 0 && row != n-1:
					require.Equal(t, float32(1), v, "%v: element %d,%d", tier, row, col)
				case row != col:
					require.Zero(t, v, "%v: element %d,%d", tier, row, col)
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

// Sizes that go in one tile, in tiles, by the transpose and in shared steps.
var ways = []struct{ m, n, k int }{{40, 30, 20}, {200, 300, 700}, {9, 600, 500}, {400, 520, 300}}

//check:in race
func TestDeterministicForAnyWorkerCount(t *testing.T) {
	for _, s := range ways {
		rng := rand.New(rand.NewPCG(3, 4))
		a, b := random(rng, snug.BF16, s.m, s.k, 0, true), random(rng, snug.F32, s.k, s.n, 1, true)
		c := random(rng, snug.F32, s.m, s.n, 0, false)
		var want []float32
		for _, procs := range []int{1, 2, 5} {
			old := runtime.GOMAXPROCS(procs)
			got := c.clone()
			Mul(s.m, s.n, s.k, 0.5, a, b, 1, got)
			runtime.GOMAXPROCS(old)
			if want == nil {
				want = floats(got.Data)
			}
			require.Equal(t, want, floats(got.Data))
		}
		MulSerial(s.m, s.n, s.k, 0.5, a, b, 1, c)
		require.Equal(t, want, floats(c.Data))
	}
}

//check:not arm64
func TestMulAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, s := range ways {
		a, b := random(rng, snug.BF16, s.m, s.k, 0, true), random(rng, snug.F16, s.k, s.n, 1, true)
		c := random(rng, snug.F32, s.m, s.n, 0, false)
		kerneltest.NoAllocs(t, func() { Mul(s.m, s.n, s.k, 1, a, b, 0, c) })
		kerneltest.NoAllocs(t, func() { MulSerial(s.m, s.n, s.k, 1, a, b, 0, c) })
	}
}

// BenchmarkMul reports the rate, and the part of the multiply-add rate of
// registers alone that it is.
func BenchmarkMul(b *testing.B) {
	peak := limits.FMA(Registry.Tier(), runtime.GOMAXPROCS(0))
	shapes := [][3]int{
		{32, 32, 32}, {64, 64, 64}, {64, 128, 64}, {128, 128, 128}, {512, 512, 512}, {1024, 1024, 1024}, {2048, 2048, 2048},
		{8, 1024, 1024}, {16, 2048, 2048}, {128, 2048, 512}, {1024, 512, 2048}, {1024, 2048, 512}, {64, 2048, 512}, {1024, 16, 1024},
	}
	for _, dt := range dtypes {
		for _, s := range shapes {
			for _, trans := range []string{"NN", "NT", "TN", "TT"} {
				b.Run(fmt.Sprintf("%v/%v/%dx%dx%d/%s", Registry.Tier(), dt, s[0], s[1], s[2], trans), func(b *testing.B) {
					m, n, k := s[0], s[1], s[2]
					rng := rand.New(rand.NewPCG(3, 4))
					x, y := random(rng, dt, m, k, 0, trans[0] == 'T'), random(rng, dt, k, n, 0, trans[1] == 'T')
					c := random(rng, dt, m, n, 0, false)
					for b.Loop() {
						Mul(m, n, k, 1, x, y, 0, c)
					}
					rate := float64(b.N) * 2 * float64(m) * float64(n) * float64(k) / b.Elapsed().Seconds()
					b.ReportMetric(rate/1e9, "GFLOP/s")
					b.ReportMetric(100*rate/peak, "%peak")
				})
			}
		}
	}
}
