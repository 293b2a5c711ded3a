package attention

import "math"

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

// exp2 returns 2^x to 2 ulp. It is 0 below the smallest normal number, x < −126,
// +Inf from x = 128 on, and NaN for NaN.
func exp2(x float32) float32 {
	switch {
	case x >= -126 && x < 128:
		return exp2Normal(x)
	case x < -126:
		return 0
	}
	return x + float32(math.Inf(1)) // NaN stays NaN
}

// exp2Normal returns 2^x for −126 ≤ x < 128, as 2^n·2^r with n the integer next
// to x. Adding 1.5·2^23 rounds x to that integer and leaves it in the low bits,
// from where it moves into the exponent.
func exp2Normal(x float32) float32 {
	const shifter = 3 << 22
	t := x + shifter
	r := x - (t - shifter)
	p := 1 + r*(exp2C1+r*(exp2C2+r*(exp2C3+r*(exp2C4+r*(exp2C5+r*exp2C6)))))
	return math.Float32frombits(math.Float32bits(p) + math.Float32bits(t)<<23)
}

// exp2Row replaces every x of row by 2^(x−base) and returns their sum.
func exp2Row(row []float32, base float32) float32 {
	var sum float32
	for i, x := range row {
		if x -= base; x >= -126 && x < 128 {
			x = exp2Normal(x) // inlined
		} else {
			x = exp2(x)
		}
		row[i] = x
		sum += x
	}
	return sum
}
