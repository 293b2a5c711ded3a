package quant8

import "math"

// Schedule returns the learning rate of a step; the first is step 1. Hand it to
// [Optimizer.Advance]:
//
//	opt.Advance(schedule(opt.Steps() + 1))
//
// It depends on the step alone, so that a run that is restored goes on with it.
type Schedule func(step int) float32

// Constant is lr at every step.
func Constant(lr float32) Schedule { return func(int) float32 { return lr } }

// Linear goes from first, at step 1, to last in equal steps, of which there are so
// many, and stays there.
func Linear(first, last float32, steps int) Schedule {
	return between(first, last, steps, func(x float64) float64 { return x })
}

// Cosine goes from first, at step 1, to last along half a cosine of so many steps, and
// stays there (Loshchilov and Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm
// Restarts", without restarts).
func Cosine(first, last float32, steps int) Schedule {
	return between(first, last, steps, func(x float64) float64 { return (1 - math.Cos(math.Pi*x)) / 2 })
}

func between(first, last float32, steps int, curve func(float64) float64) Schedule {
	return func(step int) float32 {
		if step > steps {
			return last
		}
		x := curve(float64(max(step, 1)-1) / float64(max(steps, 1)))
		return float32(float64(first)*(1-x) + float64(last)*x)
	}
}

// WarmUp returns s after so many steps in which the rate grows linearly to that of its
// first step: step k of them has k/steps of it. Steps below 1 are none. Of a nil Schedule
// all rates are NaN, which Advance refuses.
func (s Schedule) WarmUp(steps int) Schedule {
	if s == nil {
		s = Constant(float32(math.NaN()))
	}
	steps = max(steps, 0)
	return func(step int) float32 {
		if step > steps {
			return s(step - steps)
		}
		return s(1) * float32(float64(max(step, 0))/float64(max(steps, 1)))
	}
}
