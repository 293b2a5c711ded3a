// Package optim is the float32 arithmetic of elementwise optimizers, shared by every
// way to store their state. The file rules.go has the rules.
//
// Every product and every sum is rounded to float32 by itself, so the bits are the same on
// every platform.
package optim

import (
	"math"

	"github.com/snug-ml/snug/internal/cpu"
)

// Update applies one step to p, given g and the states of the rule, in the order of
// [Rule.Signed]. All have the length of p and do not overlap. It allocates nothing.
func (c *Coef) Update(p, g []float32, s [MaxStates][]float32) {
	if c.skip == 0 {
		c.update(p, g, s)
		return
	}
	for lo := 0; lo < len(p); {
		n := c.run(g[lo:])
		c.update(p[lo:lo+n], g[lo:lo+n], part(s, lo, n))
		if lo += n; lo < len(p) {
			for _, x := range part(s, lo, 1) {
				clear(x)
			}
			if table[c.rule].needs == matrix {
				p[lo] = 0 // of the matrix that is to be orthogonalized
			}
			lo++
		}
	}
}

// run returns how many elements come before the first that is skipped.
func (c *Coef) run(g []float32) int {
	for i, x := range g {
		if skipped(x*c.gradScale, c.skip) {
			return i
		}
	}
	return len(g)
}

func (c *Coef) update(p, g []float32, s [MaxStates][]float32) {
	n := len(p)
	g = g[:n]
	for i, x := range s {
		if x != nil {
			s[i] = x[:n] // assembly trusts the lengths
		}
	}
	Registry.Best().Update(*c, p, g, s)
}

// Kernels are the loops of one tier. All tiers give the same bits, except in the payloads
// of NaNs.
type Kernels struct {
	// Update updates vectors of one length. Factors go by value, so that nothing escapes.
	Update func(c Coef, p, g []float32, s [MaxStates][]float32)
	// Adam8, unless nil, is a faster [Step8] of Adam, see [Constants.Adam].
	Adam8 func(c Constants, o Operands, lo, hi int, m, v State8, block int, scratch []float32)
}

// Registry holds the loops of every tier.
var Registry cpu.Registry[Kernels]

func init() { Registry.Add(cpu.Go, Kernels{Update: update}) }

func update(c Coef, p, g []float32, s [MaxStates][]float32) { table[c.rule].update(c, p, g, s) }

// gradient returns the gradient that the update sees. Without coupled decay it does
// not depend on p, which may be infinite.
func (c *Coef) gradient(p, g float32) float32 {
	g = float32(g * c.gradScale)
	if c.l2 != 0 {
		g += float32(c.l2 * p)
	}
	return g
}

// sqrt is correctly rounded: the square root of a float32 in float64 is far enough
// from a midpoint.
func sqrt(x float32) float32 { return float32(math.Sqrt(float64(x))) }
