package fused

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var (
	floatTypes = []snug.DType{snug.F32, snug.F16, snug.BF16}
	rowCounts  = []int{0, 1, 5, 130}
	colCounts  = []int{1, 7, 64, 129}
	noFloats   []float32
)

// u is the unit roundoff of float32.
const u = 0x1p-24

// roundoff bounds the error of rounding x to a type, subnormals included.
func roundoff(dt snug.DType, x float64) float64 {
	switch dt {
	case snug.F16:
		return 0x1p-11*math.Abs(x) + 0x1p-25
	case snug.BF16:
		return 0x1p-8*math.Abs(x) + 0x1p-134
	}
	return 0x1p-24*math.Abs(x) + 0x1p-150
}

// onGPU says whether kernels for GPUs run in p.
func onGPU(p kerneltest.Backend) bool { return p.Dev != nil && !p.Dev.IsCPU() && p.Name != "opaque" }

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

// normals returns n numbers of a normal distribution, rounded to dt, so that
// tests see the values that the functions see.
func normals(rng *rand.Rand, dt snug.DType, n int, mean, sigma float64) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(mean + sigma*rng.NormFloat64())
	}
	return round(dt, v)
}

func round(dt snug.DType, v []float32) []float32 {
	switch dt {
	case snug.F16:
		for i, x := range v {
			v[i] = half.F16ToFloat32(half.Float32ToF16(x))
		}
	case snug.BF16:
		for i, x := range v {
			v[i] = snug.ToBFloat16(x).Float32()
		}
	}
	return v
}

func tokens(rng *rand.Rand, n, vocab int) []int32 {
	t := make([]int32, n)
	for i := range t {
		t[i] = int32(rng.IntN(vocab))
	}
	return t
}

// fill returns n times x.
func fill(n int, x float32) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = x
	}
	return v
}

// requireClose checks every element against its own bound.
func requireClose(t *testing.T, what string, want, bound []float64, got []float32) {
	t.Helper()
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if d := math.Abs(float64(got[i]) - w); !(d <= bound[i]) {
			require.Failf(t, what, "element %d is %v, want %v ± %v", i, got[i], w, bound[i])
		}
	}
}

// requireBits checks that two vectors have the same bits.
func requireBits(t require.TestingT, what string, want, got []float32) {
	require.Len(t, got, len(want), what)
	for i, w := range want {
		if math.Float32bits(w) != math.Float32bits(got[i]) {
			require.Failf(t, what, "element %d is %v, want %v", i, got[i], w)
		}
	}
}

// eachShape runs test for every type, backend and shape.
func eachShape(t *testing.T, test func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int)) {
	for _, dt := range floatTypes {
		t.Run(dt.String(), func(t *testing.T) {
			kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
				for _, rows := range rowCounts {
					for _, cols := range colCounts {
						test(t, p, dt, rows, cols)
					}
				}
			})
		})
	}
}

// slope is the central difference of f at x[i].
func slope(f func() float64, x []float64, i int) float64 {
	const h = 1e-5
	at := x[i]
	x[i] = at + h
	above := f()
	x[i] = at - h
	below := f()
	x[i] = at
	return (above - below) / (2 * h)
}

func float64s(v []float32) []float64 {
	w := make([]float64, len(v))
	for i, x := range v {
		w[i] = float64(x)
	}
	return w
}

// into64 is the definition of Into.
func into64(o snug.Into, old float32, g float64) float64 {
	alpha := float64(o.Alpha)
	if alpha == 0 {
		alpha = 1
	}
	if o.Beta == 0 {
		return alpha * g
	}
	return float64(o.Beta)*float64(old) + alpha*g
}

// intoBound bounds the error of into64 in float32 for a gradient with the
// error d.
func intoBound(o snug.Into, old float32, g, d float64) float64 {
	alpha := math.Abs(into64(snug.Into{Alpha: o.Alpha}, 0, 1))
	return alpha*d + 2*u*(alpha*math.Abs(g)+math.Abs(float64(o.Beta)*float64(old)))
}
