//go:build !noasm && gc

package optim

import "github.com/snug-ml/snug/internal/cpu"

func init() {
	Registry.Add(cpu.AVX2, Kernels{Update: updateAVX2})
	Registry.Add(cpu.AVX512, Kernels{Update: updateAVX512, Adam8: adam8})
	Registry.Add(cpu.AVX512VBMI, Kernels{Update: updateAVX512, Adam8: adam8VBMI})
}

// step is what the assembly updates at a time; the Go loops do the rest.
const step = 16

func updateAVX2(c Coef, p, g []float32, s [MaxStates][]float32) {
	n := len(p) / step * step
	if n > 0 {
		switch table[c.rule].loop {
		case adamLoop:
			if c.l2 != 0 {
				adamL2AVX2(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.eps, c.gradScale, c.pre, c.post, c.l2, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				adamAVX2(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.eps, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		case ademamixLoop:
			ademamixAVX2(c.beta1, c.rest1, c.beta2, c.rest2, c.beta3, c.rest3, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], &s[1][0], &s[2][0], n)
		case momentumLoop:
			if c.l2 != 0 {
				momentumL2AVX2(c.beta1, c.rest1, c.scale1, c.scale2, c.size, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				momentumAVX2(c.beta1, c.rest1, c.scale1, c.scale2, c.size, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case lionLoop:
			lionAVX2(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], n)
		case squaresLoop:
			keep, add := c.squareFactors()
			if c.l2 != 0 {
				squaresL2AVX2(keep, add, c.size, c.eps, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				squaresAVX2(keep, add, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case lambLoop:
			if c.scale2 != 0 {
				lambDecayAVX2(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				lambAVX2(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		case larsLoop:
			if c.l2 != 0 {
				larsL2AVX2(c.beta1, c.size, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				larsAVX2(c.beta1, c.size, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case scheduleFreeLoop:
			if c.scale2 != 0 {
				scheduleFreeDecayAVX2(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				scheduleFreeAVX2(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		default:
			n = 0 // Go does all
		}
	}
	update(c, p[n:], g[n:], part(s, n, len(p)-n))
}

func updateAVX512(c Coef, p, g []float32, s [MaxStates][]float32) {
	n := len(p) / step * step
	if n > 0 {
		switch table[c.rule].loop {
		case adamLoop:
			if c.l2 != 0 {
				adamL2AVX512(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.eps, c.gradScale, c.pre, c.post, c.l2, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				adamAVX512(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.eps, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		case ademamixLoop:
			ademamixAVX512(c.beta1, c.rest1, c.beta2, c.rest2, c.beta3, c.rest3, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], &s[1][0], &s[2][0], n)
		case momentumLoop:
			if c.l2 != 0 {
				momentumL2AVX512(c.beta1, c.rest1, c.scale1, c.scale2, c.size, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				momentumAVX512(c.beta1, c.rest1, c.scale1, c.scale2, c.size, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case lionLoop:
			lionAVX512(c.beta1, c.rest1, c.beta2, c.rest2, c.size, c.gradScale, c.pre, c.post, &p[0], &g[0], &s[0][0], n)
		case squaresLoop:
			keep, add := c.squareFactors()
			if c.l2 != 0 {
				squaresL2AVX512(keep, add, c.size, c.eps, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				squaresAVX512(keep, add, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case lambLoop:
			if c.scale2 != 0 {
				lambDecayAVX512(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				lambAVX512(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		case larsLoop:
			if c.l2 != 0 {
				larsL2AVX512(c.beta1, c.size, c.gradScale, c.l2, &p[0], &g[0], &s[0][0], n)
			} else {
				larsAVX512(c.beta1, c.size, c.gradScale, &p[0], &g[0], &s[0][0], n)
			}
		case scheduleFreeLoop:
			if c.scale2 != 0 {
				scheduleFreeDecayAVX512(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.scale2, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			} else {
				scheduleFreeAVX512(c.beta1, c.rest1, c.beta2, c.rest2, c.scale1, c.root, c.size, c.eps, c.gradScale, &p[0], &g[0], &s[0][0], &s[1][0], n)
			}
		default:
			n = 0 // Go does all
		}
	}
	update(c, p[n:], g[n:], part(s, n, len(p)-n))
}
