package optim

import "github.com/snug-ml/snug/internal/half"

// look writes the matrix that is to be orthogonalized.
func (c *Coef) look(x, g, m []float32) {
	g, m = g[:len(x)], m[:len(x)]
	for i, gi := range g {
		gi = float32(gi * c.gradScale)
		mi := float32(c.beta1*m[i]) + float32(c.rest1*gi)
		x[i] = float32(c.scale1*mi) + float32(c.scale2*gi)
		m[i] = mi
	}
}

// Apply subtracts Size times u from elements lo to hi-1 of the parameter p, after these
// have decayed: p ← p·(1-lr·wd) - Size·u, in tiles of the length of scratch. Element 0 of
// u is number lo of p. There is no gradient.
func (c *Coef) Apply(o Operands, lo, hi int, u, scratch []float32) {
	for ; lo < hi; lo += len(scratch) {
		x := half.Floats(o.P, lo, scratch[:min(len(scratch), hi-lo)])
		for i, v := range u[:len(x)] {
			x[i] = float32(x[i]*c.pre) - float32(c.size*v)
		}
		o.Flush(lo, x)
		u = u[len(x):]
	}
}
