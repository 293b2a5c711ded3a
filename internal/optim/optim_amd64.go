//go:build !noasm && gc

package optim

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	avx2 := loops{
		adamAVX2, lambAVX2, scheduleFreeAVX2, adamL2AVX2, lambDecayAVX2, scheduleFreeDecayAVX2, ademamixAVX2,
		momentumAVX2, squaresL2AVX2, momentumL2AVX2, lionAVX2, squaresAVX2, larsAVX2, larsL2AVX2,
	}
	avx512 := loops{
		adamAVX512, lambAVX512, scheduleFreeAVX512, adamL2AVX512, lambDecayAVX512, scheduleFreeDecayAVX512, ademamixAVX512,
		momentumAVX512, squaresL2AVX512, momentumL2AVX512, lionAVX512, squaresAVX512, larsAVX512, larsL2AVX512,
	}
	Registry.Add(cpu.AVX2, Kernels{Update: avx2.update})
	Registry.Add(cpu.AVX512, Kernels{Update: avx512.update, Adam8: adam8})
	Registry.Add(cpu.AVX512VBMI, Kernels{Update: avx512.update, Adam8: adam8VBMI})
}

// loops is the assembly of one tier, by the number of factors and of states. The generator names the factors.
type loops struct {
	adam, lamb, scheduleFree             func(_, _, _, _, _, _, _, _, _ float32, p, g, m, v *float32, n int)
	adamL2, lambDecay, scheduleFreeDecay func(_, _, _, _, _, _, _, _, _, _ float32, p, g, m, v *float32, n int)
	ademamix                             func(_, _, _, _, _, _, _, _, _, _, _, _, _, _ float32, p, g, m1, m2, v *float32, n int)
	momentum, squaresL2                  func(_, _, _, _, _, _ float32, p, g, s *float32, n int)
	momentumL2                           func(_, _, _, _, _, _, _ float32, p, g, m *float32, n int)
	lion                                 func(_, _, _, _, _, _, _, _ float32, p, g, m *float32, n int)
	squares                              func(_, _, _, _, _ float32, p, g, v *float32, n int)
	lars                                 func(_, _, _ float32, p, g, m *float32, n int)
	larsL2                               func(_, _, _, _ float32, p, g, m *float32, n int)
}

// step is what the assembly updates at a time; the Go loops do the rest.
const step = 16

func (l *loops) update(c Coef, p, g []float32, s [MaxStates][]float32) {
	n := len(p) / step * step
	if n > 0 {
		switch table[c.rule].loop {
		case adamLoop:
			if c.l2 != 0 {
				l.adamL2(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.eps, c.gradScale, c.pre, c.post, c.l2, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				l.adam(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.eps, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		case ademamixLoop:
			l.ademamix(c.beta1, c.rest1, c.beta2, c.rest2, c.beta3, c.rest3, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], &s[1][0], &s[2][0], n)
		case momentumLoop:
			if c.l2 != 0 {
				l.momentumL2(c.beta1, c.rest1, c.scale1, c.scale2, c.size, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				l.momentum(c.beta1, c.rest1, c.scale1, c.scale2, c.size, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case lionLoop:
			l.lion(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], n)
		case squaresLoop:
			keep, add := c.squareFactors()
			if c.l2 != 0 {
				l.squaresL2(keep, add, c.size, c.eps, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				l.squares(keep, add, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case lambLoop:
			if c.scale2 != 0 {
				l.lambDecay(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				l.lamb(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		case larsLoop:
			if c.l2 != 0 {
				l.larsL2(c.beta1, c.size, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				l.lars(c.beta1, c.size, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case scheduleFreeLoop:
			if c.scale2 != 0 {
				l.scheduleFreeDecay(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				l.scheduleFree(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		default:
			n = 0 // Go does all
		}
	}
	update(c, p[n:], g[n:], part(s, n, len(p)-n))
}
