package rowwise

import "math"

// exp32 returns e^x, see [Kernels].ExpSum.
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
	return p * power(half) * power(n-half)
}

// power returns 2^n for −126 ≤ n ≤ 127.
func power(n int32) float32 { return math.Float32frombits(uint32(n+127) << 23) }

func expSum(dst, src []float32, max float32) (sum float32) {
	dst = dst[:len(src)]
	var lanes [4]float32
	for i, x := range src {
		y := exp32(x - max)
		dst[i] = y
		lanes[i%4] += y
	}
	return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
}

// Coefficients of the polynomial of degree 6 with p(0) = 1 that has the least
// relative error to 2^r over |r| ≤ 1/2, by Remez's exchange: 2.6e-9, far below
// a float32's rounding.
const (
	exp2C1 = 0.6931472149680394
	exp2C2 = 0.24022652782876044
	exp2C3 = 0.05550310550995927
	exp2C4 = 0.009617692974894307
	exp2C5 = 0.001340664390501221
	exp2C6 = 0.0001559467754900736
)

// exp2 returns 2^x, and 0 below −126, where it would be subnormal. For −126 ≤ x < 128 it is 2^n·2^r
// with n the integer next to x. Adding 1.5·2^23 rounds x to that integer and
// leaves it in the low bits, from where it moves into the exponent.
func exp2(x float32) float32 {
	const shifter = 3 << 22
	switch {
	case x < -126:
		return 0
	case !(x < 128):
		return x + float32(math.Inf(1)) // NaN stays NaN
	}
	t := x + shifter
	r := x - (t - shifter)
	p := 1 + r*(exp2C1+r*(exp2C2+r*(exp2C3+r*(exp2C4+r*(exp2C5+r*exp2C6)))))
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(t)<<23)
}

// minExponent is the exponent below which Exp2Sum has 0.
const minExponent = -100

func exp2Sum(row []float32, scale, base float32) (sum float32) {
	var lanes [4]float32
	for i, x := range row {
		x = float32(scale*x) - base
		y := float32(0)
		if !(x < minExponent) {
			y = exp2(x)
		}
		row[i] = y
		lanes[i%4] += y
	}
	return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3])
}

func maximum(x []float32, scale, most float32) float32 {
	for _, v := range x {
		if v *= scale; v > most {
			most = v
		}
	}
	return most
}

func scoreGrad(ds, p []float32, delta, scale float32) {
	p = p[:len(ds)]
	for i, x := range ds {
		ds[i] = (x - delta) * p[i] * scale
	}
}
