//go:build !noasm && gc

package optim

import "github.com/snug-ml/snug/internal/cpu"

func init() { Registry.Add(cpu.NEON, Kernels{Update: updateNEON}) }

func updateNEON(c Coef, p, g []float32, s [MaxStates][]float32) {
	switch table[c.rule].loop {
	case adamLoop:
		if c.l2 != 0 {
			adamL2NEON(p, g, s[0], s[1], c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.eps, c.gradScale, c.pre, c.post, c.l2)
		} else {
			adamNEON(p, g, s[0], s[1], c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.eps, c.gradScale, c.pre, c.post)
		}
	case ademamixLoop:
		ademamixNEON(p, g, s[0], s[1], s[2], c.beta1, c.rest1, c.beta2, c.rest2, c.beta3, c.rest3, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, c.pre, c.post)
	case momentumLoop:
		if c.l2 != 0 {
			momentumL2NEON(p, g, s[0], c.beta1, c.rest1, c.scale1, c.scale2, c.size, c.gradScale, c.l2)
		} else {
			momentumNEON(p, g, s[0], c.beta1, c.rest1, c.scale1, c.scale2, c.size, c.gradScale)
		}
	case lionLoop:
		lionNEON(p, g, s[0], c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.gradScale, c.pre, c.post)
	case squaresLoop:
		keep, add := c.squareFactors()
		if c.l2 != 0 {
			squaresL2NEON(p, g, s[0], keep, add, c.size, c.eps, c.gradScale, c.l2)
		} else {
			squaresNEON(p, g, s[0], keep, add, c.size, c.eps, c.gradScale)
		}
	case lambLoop:
		if c.scale2 != 0 {
			lambDecayNEON(p, g, s[0], s[1], c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale)
		} else {
			lambNEON(p, g, s[0], s[1], c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.root, c.size, c.eps, c.gradScale)
		}
	case larsLoop:
		if c.l2 != 0 {
			larsL2NEON(p, g, s[0], c.beta1, c.size, c.gradScale, c.l2)
		} else {
			larsNEON(p, g, s[0], c.beta1, c.size, c.gradScale)
		}
	case scheduleFreeLoop:
		if c.scale2 != 0 {
			scheduleFreeDecayNEON(p, g, s[0], s[1], c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale)
		} else {
			scheduleFreeNEON(p, g, s[0], s[1], c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.root, c.size, c.eps, c.gradScale)
		}
	default:
		update(c, p, g, s)
	}
}
