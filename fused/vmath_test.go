package fused

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// float32s calls f with numbers of every magnitude and sign.
func float32s(step uint32, f func(x float32)) {
	for b := uint64(0); b <= 0x7f800000; b += uint64(step) {
		f(math.Float32frombits(uint32(b)))
		f(math.Float32frombits(uint32(b) | 1<<31))
	}
}

func TestExpError(t *testing.T) {
	worst := 0.0
	float32s(4099, func(x float32) {
		if x < -104 || x > 88.7228 {
			return
		}
		want := math.Exp(float64(x))
		_, e := math.Frexp(want)
		worst = max(worst, math.Abs(float64(exp32(x))-want)/math.Ldexp(1, max(e-24, -149)))
	})
	require.Less(t, worst, 1.0, "units in the last place")
	require.Greater(t, worst, 0.5, "the sweep found nothing")
}

func TestExpLimits(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct{ x, want float32 }{
		{0, 1}, {float32(math.Copysign(0, -1)), 1}, {0x1p-149, 1},
		{inf, inf}, {88.73, inf}, {200, inf}, {math.MaxFloat32, inf},
		{-inf, 0}, {-104.1, 0}, {-math.MaxFloat32, 0}, {-103.9, 0x1p-149},
	} {
		require.Equal(t, c.want, exp32(c.x), "exp(%v)", c.x)
	}
	require.True(t, math.IsNaN(float64(exp32(float32(math.NaN())))))
}

// sigma2u returns 2u, σ(2u) and its complement in float64.
func sigma2u(x float64) (u2, s, c float64) {
	u2 = 2 * math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x)
	return u2, 1 / (1 + math.Exp(-u2)), 1 / (1 + math.Exp(u2))
}

// gelu64 is the definition of GELU, and geluGrad64 of its derivative.
func gelu64(x float64) float64 {
	_, s, _ := sigma2u(x)
	return x * s
}

func geluGrad64(x float64) float64 {
	_, s, c := sigma2u(x)
	return s + x*s*c*2*math.Sqrt(2/math.Pi)*(1+3*0.044715*x*x)
}

func TestGELUIsTheTanhFormula(t *testing.T) {
	for x := -6.0; x <= 6; x += 0.01 {
		want := 0.5 * x * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)))
		require.InDelta(t, want, gelu64(x), 1e-15)
		at := []float64{x}
		require.InDelta(t, slope(func() float64 { return gelu64(at[0]) }, at, 0), geluGrad64(x), 1e-9)
	}
}

func TestGELUError(t *testing.T) {
	var tanh, value, grad float64
	float32s(4099, func(x float32) {
		if x < -20 || x > 20 {
			return
		}
		u2, _, _ := sigma2u(float64(x))
		s, _ := geluGate(min(max(x, -geluFlat), geluFlat))
		tanh = max(tanh, math.Abs(2*float64(s)-1-math.Tanh(u2/2)))
		value = max(value, math.Abs(float64(gelu(x))-gelu64(float64(x)))/max(1, math.Abs(float64(x))))
		grad = max(grad, math.Abs(float64(geluGrad(x))-geluGrad64(float64(x))))
	})
	require.Less(t, tanh, 2e-7)
	require.Less(t, value, 1.2e-7)
	require.Less(t, grad, 2e-7)
	require.Greater(t, min(tanh, value, grad), 1e-8, "the sweep found nothing")
}

func TestGELULimits(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	zero := func(x float32) { require.Zero(t, x) }
	for _, x := range []float32{-inf, -math.MaxFloat32, -1e20, -17} {
		zero(gelu(x))
		zero(geluGrad(x))
	}
	for _, x := range []float32{17, 1e20, math.MaxFloat32, inf} {
		require.Equal(t, x, gelu(x))
		require.Equal(t, float32(1), geluGrad(x))
	}
	zero(gelu(0))
	require.Equal(t, float32(0.5), geluGrad(0))
	require.True(t, math.IsNaN(float64(gelu(nan))))
	require.True(t, math.IsNaN(float64(geluGrad(nan))))
}
