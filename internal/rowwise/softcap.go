package rowwise

import "math"

// Coefficients of the polynomial with tanh x = x + x³·p(x²) for |x| < tanhNear that
// has the least relative error, by Remez's exchange: 1.0e-9, far below a float32's
// rounding.
const (
	tanhNear = 0.55
	tanhC0   = -0.3333331755967930
	tanhC1   = 0.1333258613890013
	tanhC2   = -0.0538523099612080
	tanhC3   = 0.0210716792840326
	tanhC4   = -0.0062742398649175
)

// tanh32 returns tanh x. Away from 0 it is (1 − e)/(1 + e) with e = e^(−2|x|), which is
// at most a third there, so that nothing cancels.
func tanh32(x float32) float32 {
	a := max(x, -x)
	if a < tanhNear {
		z := x * x
		p := tanhC0 + z*(tanhC1+z*(tanhC2+z*(tanhC3+z*tanhC4)))
		return x + x*z*p
	}
	e := exp2(-2 * math.Log2E * a)
	return float32(math.Copysign(float64((1-e)/(1+e)), float64(x)))
}

func softcap(x []float32, slope, limit float32) {
	for i, v := range x {
		x[i] = limit * tanh32(slope*v)
	}
}

func softcapSlopes(dst, x []float32, inverse, scale float32) {
	x = x[:len(dst)]
	for i, v := range x {
		t := inverse * v
		dst[i] = scale * (1 - float32(t*t))
	}
}
