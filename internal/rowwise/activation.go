package rowwise

import "math"

// logistic returns s = σ(t·ln2) = 1/(1 + 2^−t) and its derivative s·(1 − s). It
// computes σ(−|t|·ln2), which is small and so has a small error, and takes the
// other half from σ(v) = 1 − σ(−v).
func logistic(t float32) (s, ds float32) {
	e := exp2(-max(t, -t))
	d := 1 / (1 + e)
	s = e * d
	ds = s * d
	if t > 0 {
		s = 1 - s
	}
	return s, ds
}

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

// geluOf returns gelu(x). −Inf gives −0, the limit.
func geluOf(x float32) float32 {
	x = max(x, -geluFlat)
	s, _ := geluGate(min(x, geluFlat))
	return x * s
}

// geluSlope returns the derivative of gelu at x:
//
//	σ(2u) + x·σ(2u)(1 − σ(2u))·2u′
func geluSlope(x float32) float32 {
	x = min(max(x, -geluFlat), geluFlat)
	s, ds := geluGate(x)
	return s + float32(float32(x*ds)*(gelu1+float32(3*gelu3*float32(x*x))))
}

// geluGate returns σ(2u) at |x| ≤ geluFlat, and its derivative by 2u.
func geluGate(x float32) (s, ds float32) {
	return logistic(x * (gelu1*math.Log2E + float32(gelu3*math.Log2E*float32(x*x))))
}

func gelu(dst, x, bias []float32, _ bool) {
	for i, v := range x {
		dst[i] = geluOf(v + bias[i])
	}
}

func geluGrad(dx, sums, dy, x, bias []float32, _ bool) {
	for i, v := range x {
		d := float32(dy[i] * geluSlope(v+bias[i]))
		dx[i] = d
		sums[i] += d
	}
}

// GELU itself (torch's approximate='none') is x·Φ(x), with the normal distribution
// function Φ(x) = ½(1 + erf(x/√2)) and its derivative φ(x) = e^(−x²/2)/√(2π). The tail
//
//	Φ(−a) = e^(−a²/2)·q(u),  u = 1 − 1/(1 + normalScale·a),  a ≥ 0
//
// is computed first, which keeps small results at negative x accurate: q, Mills' ratio
// over √(2π), falls slowly from ½, and a polynomial of degree 7 in u with q(0) = ½ has an
// error of e^(−a²/2)·q below 1.6e-9·max(1, a)⁻¹, by weighted least squares whose weights
// follow the error (Lawson's iteration).
const (
	normalScale = 0.4
	normal1     = -0.997355938
	normal2     = 0.565155149
	normal3     = 0.0496571064
	normal4     = -0.100837998
	normal5     = -0.0492897332
	normal6     = 0.0110310866
	normal7     = 0.0235113259
	peak        = 0.3989422804014327 // φ(0)
)

// normal returns Φ(x) and e^(−x²/2) at |x| ≤ geluFlat.
func normal(x float32) (s, e float32) {
	e = exp2(float32(x*x) * (-0.5 * math.Log2E))
	u := 1 - 1/(1+float32(normalScale*max(x, -x)))
	s = e * (0.5 + u*(normal1+u*(normal2+u*(normal3+u*(normal4+u*(normal5+u*(normal6+u*normal7)))))))
	if x > 0 {
		s = 1 - s
	}
	return s, e
}

// geluErfOf returns x·Φ(x). −Inf gives −0, the limit.
func geluErfOf(x float32) float32 {
	x = max(x, -geluFlat)
	s, _ := normal(min(x, geluFlat))
	return x * s
}

// geluErfSlope returns Φ(x) + x·φ(x).
func geluErfSlope(x float32) float32 {
	x = min(max(x, -geluFlat), geluFlat)
	s, e := normal(x)
	return s + float32(float32(x*e)*peak)
}

func geluErf(dst, x, bias []float32, _ bool) {
	for i, v := range x {
		dst[i] = geluErfOf(v + bias[i])
	}
}

func geluErfGrad(dx, sums, dy, x, bias []float32, _ bool) {
	for i, v := range x {
		d := float32(dy[i] * geluErfSlope(v+bias[i]))
		dx[i] = d
		sums[i] += d
	}
}

// siluFlat bounds x where σ(x) is 0 or 1 in float32.
const siluFlat = 128

// siluOf returns x·σ(x), the SiLU of Elfwing, Uchibe and Doya, "Sigmoid-Weighted
// Linear Units for Neural Network Function Approximation in Reinforcement
// Learning" (2018), and its derivative σ(x) + x·σ(x)(1 − σ(x)).
func siluOf(x float32) (y, slope float32) {
	x = max(x, -siluFlat)
	s, ds := logistic(x * math.Log2E)
	return x * s, s + float32(min(x, siluFlat)*ds)
}

// sigmoidOf returns σ(x), 0 for x below −88.
func sigmoidOf(x float32) float32 {
	s, _ := logistic(max(x, -siluFlat) * math.Log2E)
	return s
}

func siluMul(dst, gate, up []float32, _ bool) {
	for i, x := range gate {
		y, _ := siluOf(x)
		dst[i] = y * up[i]
	}
}

func siluMulGrad(dgate, dup, dy, gate, up []float32, _ bool) {
	for i, x := range gate {
		y, slope := siluOf(x)
		d := dy[i]
		dgate[i], dup[i] = float32(d*up[i])*slope, d*y
	}
}

// geluMul and geluMulGrad are the gate of GeGLU.
func geluMul(dst, gate, up []float32, _ bool) {
	for i, x := range gate {
		dst[i] = geluOf(x) * up[i]
	}
}

func geluMulGrad(dgate, dup, dy, gate, up []float32, _ bool) {
	for i, x := range gate {
		d := dy[i]
		dgate[i], dup[i] = float32(d*up[i])*geluSlope(x), d*geluOf(x)
	}
}

// clampedMul and clampedMulGrad are the gate of gpt-oss: with g = min(gate, limit) and u the up clamped to ±limit,
// (u + 1)·g·σ(alpha·g). An element at its limit or beyond has the derivative 0.

func clampedMul(dst, gate, up []float32, alpha, limit float32, _ bool) {
	inverse := 1 / alpha
	for i, x := range gate {
		y, _ := siluOf(alpha * min(x, limit))
		dst[i] = float32(y*inverse) * (min(max(up[i], -limit), limit) + 1)
	}
}

func clampedMulGrad(dgate, dup, dy, gate, up []float32, alpha, limit float32, _ bool) {
	inverse := 1 / alpha
	for i, x := range gate {
		y, slope := siluOf(alpha * min(x, limit))
		v, d := up[i], dy[i]
		a, b := float32(d*(min(max(v, -limit), limit)+1))*slope, float32(d*y)*inverse
		if x >= limit {
			a = 0
		}
		if v >= limit || v <= -limit {
			b = 0
		}
		dgate[i], dup[i] = a, b
	}
}
