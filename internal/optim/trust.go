package optim

import (
	"math"

	"github.com/snug-ml/snug/internal/cpu"
)

// Norms says whether a step depends on norms over the whole parameter.
func (h Hyper) Norms() bool { return h.Rule.Trust() || h.MaxUpdate > 0 }

// Whole is [Rule.Whole], for MaxUpdate too.
func (h Hyper) Whole() bool { return h.Rule.Whole() || h.MaxUpdate > 0 }

// Sized returns h with the step size for a parameter of n elements, given the sums of
// [Coef.Squares] over all of them: with the Size of a rule with factors, or else with Ratio, which is
// the trust ratio of the rule, or what shortens an update that is longer than MaxUpdate.
// LR stays, because decoupled decay is LR·WeightDecay whatever the length of the update.
func (h Hyper) Sized(parameter, update float64, n int) Hyper {
	if h.Rule.Factored() {
		h.Size = h.size(parameter, update, n)
	} else {
		h.Ratio = h.ratio(parameter, update)
	}
	return h
}

// ratio is 1 where a norm is 0.
func (h Hyper) ratio(parameter, update float64) float64 {
	p, u := math.Sqrt(parameter), math.Sqrt(update)
	if p == 0 || u == 0 {
		return 1
	}
	if ratio := table[h.Rule].ratio; ratio != nil {
		return ratio(h, p, u)
	}
	return min(1, h.MaxUpdate*p/u)
}

// Measure returns the factors for [Coef.Squares].
func (h Hyper) Measure() Coef {
	if h.Rule.Trust() {
		return h.Coef()
	}
	coupled := h.Coef().l2
	h.LR, h.WeightDecay = 1, 0
	c := h.Coef()
	c.l2 = coupled
	return c
}

// Squares returns the sum of squares of the parameter and the sum of squares of its update,
// for the factors of [Hyper.Measure]. The update is u where the equation of the rule
// has one, or the gradient before its decay, and otherwise the factor of the learning rate, without
// decoupled decay. The slices are the slices of [Coef.Update]; Squares does not write them.
// Squares of float32 are exact in float64, so the sums round alike with fused
// multiplications and without.
func (c *Coef) Squares(p, g []float32, s [MaxStates][]float32) (parameter, update float64) {
	tile := tiles.Get((2 + MaxStates) * squaresTile)
	defer tiles.Put(tile)
	for lo := 0; lo < len(p); {
		n := min(len(p)-lo, squaresTile)
		if c.skip != 0 {
			n = c.run(g[lo : lo+n])
		}
		if n == 0 { // it is skipped
			parameter += float64(p[lo]) * float64(p[lo])
			lo++
			continue
		}
		u := (*tile)[:n]
		c.updateOf(u, p[lo:], g[lo:], part(s, lo, n), (*tile)[squaresTile:])
		for i, x := range p[lo : lo+n] {
			parameter += float64(x) * float64(x)
			update += float64(u[i]) * float64(u[i])
		}
		lo += n
	}
	return parameter, update
}

// squaresTile is the number of elements whose updates are made together.
const squaresTile = 128

var tiles cpu.Scratch

// updateOf sets u to the update of len(u) elements, or what Squares has in its place.
// scratch has a tile for the gradient and for each state.
func (c *Coef) updateOf(u, p, g []float32, s [MaxStates][]float32, scratch []float32) {
	p, g = p[:len(u)], g[:len(u)]
	if of := table[c.rule].updateOf; of != nil {
		of(*c, u, p, g, s)
		return
	}
	// from 0 on, with copies of the states
	gradient := scratch[:len(u)]
	var copies [MaxStates][]float32
	for i, x := range g {
		gradient[i] = c.gradient(p[i], x)
	}
	for i := range s {
		to := scratch[(1+i)*squaresTile:]
		copies[i] = to[:copy(to[:squaresTile], s[i])]
	}
	plain := *c
	plain.gradScale, plain.l2 = 1, 0
	clear(u)
	update(plain, u, gradient, copies)
}
