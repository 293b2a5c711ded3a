package accum

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
)

// TestRoundedBits checks every bit of sums in bfloat16 against the definition,
// for micro-batches, one without the gradient.
//
//check:in tiers arm64
func TestRoundedBits(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			for _, n := range []int{1, 5, 8, 4097, chunk + 7} {
				for _, skip := range skips {
					roundedBits(t, p, dt, n, skip)
				}
			}
		}
	})
}

func roundedBits(t *testing.T, p kerneltest.Backend, dt snug.DType, n, skip int) {
	garbage := make([]float32, n)
	for i := range garbage {
		garbage[i] = nan
	}
	buffer := kerneltest.PutFloats(t, p, snug.BF16, append(make([]float32, skip), garbage...))
	w := one(t, n, Options{Schedule: Constant(4), DType: snug.BF16, Seed: 77, Buffer: kerneltest.After(t, buffer.View, skip)})
	want := make([]float32, n)
	for i, weight := range []float64{3, 1, 2, 0.5} {
		g := kerneltest.PutFloats(t, p, dt, append(make([]float32, skip), append(special, kerneltest.Uniform(uint64(i), n)...)[:n]...))
		require.NoError(t, w.Begin(weight))
		if i != 2 {
			require.NoError(t, w.Add("w", kerneltest.After(t, g.View, skip)))
		}
		alpha, beta := w.alpha, w.beta
		_, err := w.End()
		require.NoError(t, err)
		seed := uint64(77 + 2*i)
		if i == 2 {
			seed++
		}
		words := make([]uint32, (n+1)/2)
		draws := philox.Stream{Seed: seed, Tensor: w.params[0].stream}.Halves(words, 0)
		x := g.Get()[skip:]
		for j := range want {
			sum := float32(beta * want[j])
			switch {
			case i == 0:
				sum = alpha * x[j]
			case i != 2:
				sum = float32(alpha*x[j]) + sum
			}
			if sum == sum {
				bits := math.Float32bits(sum) + uint32(draws[j])
				want[j] = math.Float32frombits(bits &^ 0xffff)
			} else {
				want[j] = nan
			}
		}
	}
	got := buffer.Get()[skip:]
	for j := range want {
		if want[j] != want[j] && got[j] != got[j] {
			continue
		}
		require.Equal(t, math.Float32bits(want[j]), math.Float32bits(got[j]), "element %d of %d: want %v, got %v", j, n, want[j], got[j])
	}
}

// TestRoundedMean has gradients that nearest rounding would lose, and the error
// that Options states.
func TestRoundedMean(t *testing.T) {
	const n, micros = 20000, 16
	w := one(t, n, Options{Schedule: Constant(micros), DType: snug.BF16, Seed: 5})
	g := make([]float32, n)
	for i := range micros {
		for j := range g {
			g[j] = 1 + float32(i)/1024
		}
		micro(t, w, 1, g...)
	}
	exact := 1 + float64(micros-1)/2/1024
	v, err := w.Gradient("w")
	require.NoError(t, err)
	sum, squares := 0.0, 0.0
	for _, x := range v.BFloat16s() {
		d := float64(x.Float32()) - exact
		sum += d
		squares += d * d
	}
	rms := math.Sqrt(squares / n)
	require.InDelta(t, 0, sum/n, 5*rms/math.Sqrt(n), "unbiased within five standard errors")
	require.Less(t, rms, math.Sqrt(micros)*0x1p-9*exact)
	require.Greater(t, rms, 0.1*math.Sqrt(micros)*0x1p-9*exact, "the statement is not far off")
	_, _, err = w.Into("w")
	require.ErrorIs(t, err, snug.ErrConfig)
}

func TestRoundedOptions(t *testing.T) {
	params := []Param{{"w", 3}}
	for _, bad := range []Options{
		{DType: snug.F16}, {DType: snug.U8}, {DType: snug.BF16, Buffer: snug.ViewOf(make([]float32, 3))}, {Buffer: snug.ViewOf(make([]snug.BFloat16, 3))},
	} {
		_, err := New(params, bad)
		require.ErrorIs(t, err, snug.ErrDType)
	}
	w := newWindow(t, params, Options{DType: snug.BF16})
	require.NoError(t, w.Begin(1))
	_, _, err := w.Into("w")
	require.ErrorContains(t, err, "bf16")
	require.NoError(t, w.Add("w", snug.ViewOf([]float32{1, 2, 3})))
	full, err := w.End()
	require.NoError(t, err)
	require.True(t, full)
	v, err := w.Gradient("w")
	require.NoError(t, err)
	require.Len(t, v.BFloat16s(), 3)
}
