package train

import "math"

// Constant returns a schedule of one learning rate.
func Constant(rate float32) func(step int) float32 {
	return func(int) float32 { return rate }
}

// Linear returns a schedule that rises linearly to the peak over warmup steps, and falls linearly to end·peak after the
// last of steps.
func Linear(peak, end float32, warmup, steps int) func(step int) float32 {
	return warmed(peak, warmup, steps, func(done float64) float64 { return 1 - (1-float64(end))*done })
}

// Cosine returns a schedule that rises linearly to the peak over warmup steps, and falls along half a cosine to a tenth
// of the peak after the last of steps (Loshchilov and Hutter 2017, "SGDR", arXiv:1608.03983).
func Cosine(peak float32, warmup, steps int) func(step int) float32 {
	return warmed(peak, warmup, steps, func(done float64) float64 { return 0.1 + 0.45*(1+math.Cos(math.Pi*done)) })
}

// warmed rises over warmup steps and then follows curve, from curve(0) after them to curve(1) after the last of steps.
func warmed(peak float32, warmup, steps int, curve func(done float64) float64) func(step int) float32 {
	return func(step int) float32 {
		if step < warmup {
			return peak * float32(step+1) / float32(warmup)
		}
		done := min(1, float64(step-warmup)/float64(max(1, steps-warmup)))
		return float32(float64(peak) * curve(done))
	}
}
