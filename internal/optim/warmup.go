package optim

import "math"

// Warm returns h with a warm-up of so many steps each: α grows linearly from
// 0, and β3 from β1 so that the half-life of the slow moment grows linearly,
//
//	β3(t) = exp(ln β1·ln β3/((1-t/T)·ln β3 + t/T·ln β1))
//
// up to their values. 0 steps leave them constant.
func (h Hyper) Warm(alpha, beta3 int) Hyper {
	if h.Step < alpha {
		h.Alpha *= float64(h.Step) / float64(alpha)
	}
	if h.Step < beta3 {
		done := float64(h.Step) / float64(beta3)
		fast, slow := ln(h.Beta1), ln(h.Beta3)
		h.Beta3 = exp(float64(fast*slow) / (float64((1-done)*slow) + float64(done*fast)))
	}
	return h
}

// ln and exp are series in which every product is rounded, so the result is the same on
// every platform. Package math does not promise that. ln takes x > 0 and is exact to a few
// units in the last place; exp takes numbers from -100 to 0 and has an error of 1e-12.
func ln(x float64) float64 {
	fraction, exponent := math.Frexp(x)
	z := (fraction - 1) / (fraction + 1)
	sum, term := 0.0, z
	for n := 1; n < 40; n += 2 {
		sum += term / float64(n)
		term = float64(term * float64(z*z))
	}
	return float64(2*sum) + float64(float64(exponent)*math.Ln2)
}

func exp(x float64) float64 {
	x /= 1 << 12
	sum, term := 1.0, 1.0
	for n := 1; n < 12; n++ {
		term = float64(term*x) / float64(n)
		sum += term
	}
	return power(sum, 1<<12)
}

// power returns x^n for n >= 0 by squaring. It multiplies only and rounds each
// product, so that the result is the same on every platform, which math.Pow
// does not promise.
func power(x float64, n int) float64 {
	y := 1.0
	for ; n > 0; n >>= 1 {
		if n&1 != 0 {
			y = float64(y * x)
		}
		x *= x
	}
	return y
}

// rate returns the learning rate of an update that is multiplied by ratio, rounded to
// float32. A ratio of 0 means 1.
func rate(lr, ratio float64) float64 {
	if ratio == 0 {
		return lr
	}
	return float64(float32(lr * ratio))
}
