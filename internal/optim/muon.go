package optim

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

// look writes the matrix that is to be orthogonalized.
func look(c Coef, x, g []float32, s [MaxStates][]float32) {
	g, m := g[:len(x)], s[0][:len(x)]
	for i, gi := range g {
		gi = float32(gi * c.gradScale)
		mi := float32(c.beta1*m[i]) + float32(c.rest1*gi)
		x[i] = float32(c.scale1*mi) + float32(c.scale2*gi)
		m[i] = mi
	}
}

// Apply subtracts Size times u from elements lo to hi-1 of the parameter p, after these
// have decayed: p ← p·(1-lr·wd) - Size·u. Element 0 of u is number lo of p. The gradient
// says which elements are skipped. scratch has two tiles.
func (c *Coef) Apply(o Operands, lo, hi int, u, scratch []float32) {
	tile := len(scratch) / 2
	for ; lo < hi; lo += tile {
		n := min(tile, hi-lo)
		x := half.Floats(o.P, lo, scratch[:n])
		if c.skip == 0 {
			sweep.Accumulate(x, snug.SliceView(u[:n]), 0, -c.size, c.pre)
		} else {
			g := half.Floats(o.G, lo, scratch[tile:][:n])
			for i, v := range u[:n] {
				if !skipped(g[i]*c.gradScale, c.skip) {
					x[i] = float32(x[i]*c.pre) - float32(c.size*v)
				}
			}
		}
		o.Flush(lo, x)
		u = u[n:]
	}
}
