package optim

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
)

// Distance is Prodigy's estimate d of the distance to the solution.
type Distance struct {
	D, Most   float64 // d, and the largest estimate of all steps
	Numerator float64 // a decaying sum
	Steps     int     // that have changed the estimate
}

// Grow are the constants of [Distance.Next].
type Grow struct{ Start, Coefficient, Rate, Beta3 float64 }

// Next returns the estimate after a step with the sums of [Slices] over all parameters. A denominator of 0 says that
// nothing has moved along a gradient: the estimate stays as it is, the numerator does not decay and the step does not
// count.
func (e Distance) Next(g Grow, numerator, denominator float64) Distance {
	if denominator == 0 {
		return e
	}
	e.Steps++
	e.Numerator = float64(g.Beta3*e.Numerator) + numerator
	found := float64(g.Coefficient*e.Numerator) / denominator
	if e.D == g.Start {
		e.D = max(e.D, found)
	}
	e.Most = max(e.Most, found)
	e.D = min(e.Most, float64(e.D*g.Rate))
	return e
}

// Slices are the elements of a parameter that count in the sums of Prodigy: every Every-th element. For each slice,
// Prodigy keeps S, a decaying sum of gradients, and Away, the difference p0 - p between the first value and the present
// one. P and G are a range of the parameter and its gradient, which begins at element First of the parameter. S and
// Away begin with the first slice of that range.
type Slices struct {
	P, G                snug.View // on the host
	First, Every        int
	S, Away             []float32
	GradScale           float32
	Beta3, Along, Weigh float64 // of S; what a gradient counts in S; and in the numerator
	Skip                uint32  // see [Hyper]
	SkipScale           float32 // of gradients that Skip bounds, as in the update
}

// Before adds the gradients of slices lo to hi-1 to S. It returns what these slices add to the numerator,
// Weigh·Σg·(p0-p), and to the denominator, Σ|s|. From then until After, Away holds p0. scratch has 2 elements.
func (x *Slices) Before(lo, hi int, scratch []float32) (numerator, denominator float64) {
	beta3, along := float32(x.Beta3), float32(x.Along)
	p, g := scratch[:1], scratch[1:2]
	for k := lo; k < hi; k++ {
		i := x.element(k)
		pi, gi := half.Floats(x.P, i, p)[0], half.Floats(x.G, i, g)[0]
		away := x.Away[k]
		x.Away[k] = away + pi
		if x.Skip != 0 && skipped(gi*x.SkipScale, x.Skip) {
			x.S[k] = 0
			continue
		}
		gi *= x.GradScale
		s := float32(beta3*x.S[k]) + float32(along*gi)
		x.S[k] = s
		numerator += float64(gi) * float64(away)
		denominator += math.Abs(float64(s))
	}
	return x.Weigh * numerator, denominator
}

// After sets Away of slices lo to hi-1 to p0 - p, once the parameter has changed. scratch has 1 element.
func (x *Slices) After(lo, hi int, scratch []float32) {
	for k := lo; k < hi; k++ {
		x.Away[k] -= half.Floats(x.P, x.element(k), scratch[:1])[0]
	}
}

// element returns the index in P of slice k.
func (x *Slices) element(k int) int { return (SlicesOf(x.First, x.Every)+k)*x.Every - x.First }

// SlicesOf returns how many slices n elements have.
func SlicesOf(n, every int) int { return (n + every - 1) / every }
