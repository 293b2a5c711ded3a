package fused

import "math"

// exp32 returns e^x with an error below 1 unit in the last place, also where the
// result is subnormal. It is 0 below −104, +Inf above 88.73 and NaN for NaN.
//
// x = n·ln2 + r with |r| ≤ ln2/2, after Cody and Waite, "Software Manual for the
// Elementary Functions" (1980); e^r is the minimax polynomial of Cephes' expf.
func exp32(x float32) float32 {
	const (
		log2e = 1.44269504088896341
		ln2Hi = 0.693359375 // few bits: n·ln2Hi is exact
		ln2Lo = -2.12194440e-4
		shift = 0x1.8p23 // adding it rounds to an integer, held in the low bits
	)
	if !(x > -104) {
		if x != x {
			return x
		}
		return 0
	}
	if x > 88.73 {
		return float32(math.Inf(1))
	}
	t := float32(x*log2e) + shift
	n := int32(math.Float32bits(t)) - int32(math.Float32bits(shift))
	t -= shift
	r := x - float32(t*ln2Hi)
	r -= float32(t * ln2Lo)
	p := float32(1.9875691500e-4*r) + 1.3981999507e-3
	p = float32(p*r) + 8.3334519073e-3
	p = float32(p*r) + 4.1665795894e-2
	p = float32(p*r) + 1.6666665459e-1
	p = float32(p*r) + 5.0000001201e-1
	p = float32(float32(p*r)*r) + r + 1
	// 2^n as two factors, since n may be 128, and below −126.
	half := n >> 1
	return p * exp2(half) * exp2(n-half)
}

// exp2 returns 2^n for −126 ≤ n ≤ 127.
func exp2(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

// The tanh approximation of GELU, in Hendrycks and Gimpel, "Gaussian Error
// Linear Units" (2016), as GPT-2 has it:
//
//	gelu(x) = ½x(1 + tanh u),  u = √(2/π)·(x + 0.044715x³)
//
// Since ½(1 + tanh u) is the logistic function σ(2u), no tanh is needed, and
// small results at negative x keep their relative accuracy. With the two
// constants 2u = x(gelu1 + gelu3·x²).
const (
	gelu1 = 2 * 0.79788456080286536 // 2√(2/π)
	gelu3 = gelu1 * 0.044715
	// At ±geluFlat σ(2u) is 0 or 1 in float32.
	geluFlat = 16
)

// gelu returns gelu(x). −Inf gives −0, the limit.
func gelu(x float32) float32 {
	x = max(x, -geluFlat)
	s, _ := geluGate(min(x, geluFlat))
	return x * s
}

// geluGrad returns the derivative of gelu at x:
//
//	σ(2u) + x·σ(2u)(1 − σ(2u))·2u′
func geluGrad(x float32) float32 {
	x = min(max(x, -geluFlat), geluFlat)
	s, ds := geluGate(x)
	return s + float32(float32(x*ds)*(gelu1+float32(3*gelu3*float32(x*x))))
}

// geluGate returns σ(2u) at |x| ≤ geluFlat, and its derivative by 2u,
// σ(2u)(1 − σ(2u)). It computes σ(−|2u|), which is small and so has a small
// error, and takes the other half from σ(v) = 1 − σ(−v).
func geluGate(x float32) (s, ds float32) {
	u2 := x * (gelu1 + float32(gelu3*float32(x*x)))
	e := exp32(-max(u2, -u2))
	d := 1 / (1 + e)
	s = e * d
	ds = s * d
	if u2 > 0 {
		s = 1 - s
	}
	return s, ds
}
