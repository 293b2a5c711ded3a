package optim

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/sweep"
)

// Shared are step sizes: Each elements that follow one another have one, and Sizes begins with the
// size of element First of the parameter.
type Shared struct {
	Sizes       []float32
	Each, First int
}

// SetShared makes the step one with such sizes, see [Hyper.Shares].
func (c *Coef) SetShared(s *Shared) { c.shared = s }

// SharedMoments updates second moments by sums of the squares of n gradients each, before their scale:
// v ← β2·v + (1-β2)·sum·scale²/n. The sum of a moment is in so many parts, one after the other.
func (h Hyper) SharedMoments(v []float32, sums []float64, parts, n int) {
	scale := float64(h.GradScale)
	keep, add := float32(h.Beta2), (1-h.Beta2)*float64(scale*scale)/float64(n)
	for i := range v {
		sum := 0.0
		for _, x := range sums[i*parts:][:parts] {
			sum += x
		}
		v[i] = float32(keep*v[i]) + float32(add*sum)
	}
}

// SharedSizes replaces second moments by the sizes of the step, lr·c2/c1/(√v + ε·c2).
func (c *Coef) SharedSizes(v []float32) {
	for i, x := range v {
		v[i] = min(c.size/(sqrt(x)+c.eps), math.MaxFloat32) // 0 times an infinity would be NaN
	}
}

// updateShared is [Coef.Update] of elements from number lo of the parameter on: for each size the loop of Momentum.
func (c *Coef) updateShared(lo int, p, g []float32, s [MaxStates][]float32) {
	piece := *c
	for at := 0; at < len(p); {
		i := lo + at - c.shared.First
		end := min(len(p), at+c.shared.Each-i%c.shared.Each)
		piece.size = c.shared.Sizes[i/c.shared.Each]
		piece.decay(p[at:end], g[at:end])
		piece.Update(p[at:end], g[at:end], part(s, at, end-at))
		at = end
	}
}

// decay multiplies the elements of p that are not skipped.
func (c *Coef) decay(p, g []float32) {
	switch {
	case c.pre == 1:
	case c.skip == 0:
		sweep.Scale(snug.SliceView(p), 0, len(p), c.pre)
	default:
		for i, x := range p {
			if !skipped(float32(g[i]*c.gradScale), c.skip) {
				p[i] = x * c.pre
			}
		}
	}
}
