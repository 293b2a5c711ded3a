package train

import "math"

// Constant is a learning rate that stays.
func Constant(rate float32) func(step int) float32 {
	return func(int) float32 { return rate }
}

// Linear rises over warmup steps to the peak and falls evenly to end·peak at the last of steps.
func Linear(peak, end float32, warmup, steps int) func(step int) float32 {
	return warmed(peak, warmup, steps, func(done float64) float64 { return 1 - (1-float64(end))*done })
}

// Cosine rises over warmup steps to the peak and falls along half a cosine to a tenth of it at the last
// of steps (Loshchilov and Hutter 2017, "SGDR", arXiv:1608.03983).
func Cosine(peak float32, warmup, steps int) func(step int) float32 {
	return warmed(peak, warmup, steps, func(done float64) float64 { return 0.1 + 0.45*(1+math.Cos(math.Pi*done)) })
}

// warmed rises over warmup steps and then follows a curve over 0 to 1.
func warmed(peak float32, warmup, steps int, curve func(done float64) float64) func(step int) float32 {
	return func(step int) float32 {
		if step < warmup {
			return peak * float32(step+1) / float32(warmup)
		}
		done := min(1, float64(step-warmup)/float64(max(1, steps-warmup)))
		return float32(float64(peak) * curve(done))
	}
}
