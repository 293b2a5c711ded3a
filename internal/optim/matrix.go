package optim

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/sweep"
)

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
