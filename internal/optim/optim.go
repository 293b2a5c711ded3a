// Package optim is the float32 arithmetic of elementwise optimizers, shared by every
// way to store their state. With g the gradient times a scale, one update of a
// parameter p by a rule with the states m, v and n is
//
//	rule      update                                                       states
//	Adam      m ← β1·m + (1-β1)·g; v ← β2·v + (1-β2)·g²                    m, v
//	          p ← p - lr·c2/c1·m/(√v + ε·c2)
//	AdEMAMix  m, v as Adam; n ← β3·n + (1-β3)·g                            m, n, v
//	          p ← p - lr·(m/c1 + α·n)/(√v/c2 + ε)
//	Momentum  m ← μ·m + (1-d)·g, at first g; p ← p - lr·m                  m
//	Nesterov  m as Momentum; p ← p - lr·(g + μ·m)                          m
//	Lion      p ← p - lr·sign(β1·m + (1-β1)·g); m ← β2·m + (1-β2)·g        m
//	RMSprop   v ← α·v + (1-α)·g²; p ← p - lr·g/(√v + ε)                    v
//	Adagrad   v ← v + g²; p ← p - lr·g/(√v + ε)                            v
//	LAMB      m, v as Adam; u = m/c1/(√v/c2 + ε) + wd·p                    m, v
//	          p ← p - lr·|p|/|u|·u
//	LARS      m ← μ·m + lr·η·|p|/(|g| + wd·|p|)·(g + wd·p); p ← p - m      m
//	Adafactor v ← β·v + (1-β)·g²; u = g/max(√v, ε)                         v
//	          p ← p - α/max(1, rms(u)/d)·u
//	AdafactorMomentum  v, u as Adafactor                                   m, v
//	          m ← β1·m + (1-β1)·α/max(1, rms(u)/d)·u; p ← p - m
//	Muon      m ← μ·m + (1-μ)·g; p ← m, or with Nesterov (1-μ)·g + μ·m     m
//	ScheduleFree  v as Adam; u = g/(√v/c2 + ε) + wd·p                      m, v
//	          p ← p + c·m - lr·(1-β1·(1-c))·u; m ← (1-c)·(m - lr·β1·u)
//
// with c1 = 1-β1^t, c2 = √(1-β2^t), 1-β = t^τ and α = max(ε2, rms(p))·min(lr, 1/√t) at
// step t, and c the weight of the step in the average, by [Averaging]. Muon's p is not the parameter but the matrix that [Coef.Apply] subtracts when it
// is orthogonal. For matrices Adafactor uses [Factors] instead of v. The norms of LAMB, LARS
// and Adafactor are over all elements of a parameter, see [Hyper.Sized].
//
// Weight decay is decoupled for Adam, AdEMAMix, Lion, Adafactor and Muon: p is multiplied by
// 1-lr·wd, before or after the update. It is coupled for the other rules whose equation does
// not contain wd, and for Adam on request: wd·p is added to g.
//
// These are the rules of torch.optim and of bitsandbytes' kernels. Their sources:
//
//	AdEMAMix   Pagliardini, Ablin and Grangier 2024, arXiv:2409.03137
//	Lion       Chen et al. 2023, arXiv:2302.06675
//	LAMB       You et al. 2019, arXiv:1904.00962
//	LARS       You, Gitman and Ginsburg 2017, arXiv:1708.03888
//	Adafactor  Shazeer and Stern 2018, arXiv:1804.04235
//	Muon       Jordan et al. 2024
//	ScheduleFree  Defazio et al. 2024, arXiv:2405.15682
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
			if c.rule == Muon {
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

func adam(c Coef, p, g []float32, s [MaxStates][]float32) {
	m, v := s[0][:len(p)], s[1][:len(p)]
	g = g[:len(p)]
	for i, pi := range p {
		gi := c.gradient(pi, g[i])
		mi := float32(c.beta1*m[i]) + float32(c.rest1*gi)
		vi := float32(c.beta2*v[i]) + float32(float32(c.rest2*gi)*gi)
		pi = float32(pi*c.pre) - float32(c.size*float32(mi/(sqrt(vi)+c.eps)))
		m[i], v[i], p[i] = mi, vi, float32(pi*c.post)
	}
}

func ademamix(c Coef, p, g []float32, s [MaxStates][]float32) {
	m, n, v := s[0][:len(p)], s[1][:len(p)], s[2][:len(p)]
	g = g[:len(p)]
	for i, pi := range p {
		gi := c.gradient(pi, g[i])
		mi := float32(c.beta1*m[i]) + float32(c.rest1*gi)
		ni := float32(c.beta3*n[i]) + float32(c.rest3*gi)
		vi := float32(c.beta2*v[i]) + float32(float32(c.rest2*gi)*gi)
		mixed := float32(c.scale1*mi) + float32(c.scale2*ni)
		pi = float32(pi*c.pre) - float32(c.size*float32(mixed/(float32(sqrt(vi)*c.root)+c.eps)))
		m[i], n[i], v[i], p[i] = mi, ni, vi, float32(pi*c.post)
	}
}

func momentum(c Coef, p, g []float32, s [MaxStates][]float32) {
	m := s[0][:len(p)]
	g = g[:len(p)]
	for i, pi := range p {
		gi := c.gradient(pi, g[i])
		mi := float32(c.beta1*m[i]) + float32(c.rest1*gi)
		p[i] = pi - float32(c.size*(float32(c.scale1*mi)+float32(c.scale2*gi)))
		m[i] = mi
	}
}

// withSign returns x, or -x if s is negative. It has no branch, whose direction would
// be a coin toss.
func withSign(x, s float32) float32 {
	return math.Float32frombits(math.Float32bits(x) ^ math.Float32bits(s)&(1<<31))
}

func lion(c Coef, p, g []float32, s [MaxStates][]float32) {
	m := s[0][:len(p)]
	g = g[:len(p)]
	for i, pi := range p {
		gi := c.gradient(pi, g[i])
		d := float32(c.beta1*m[i]) + float32(c.rest1*gi)
		step := withSign(c.size, d)
		if d == 0 || d != d {
			step = 0
		}
		p[i] = float32((float32(pi*c.pre) - step) * c.post)
		m[i] = float32(c.beta2*m[i]) + float32(c.rest2*gi)
	}
}

// squareFactors returns what v and g² count in RMSprop and in Adagrad.
func (c *Coef) squareFactors() (keep, add float32) {
	if c.rule == Adagrad {
		return 1, 1
	}
	return c.beta1, c.rest1
}

// squares is RMSprop and Adagrad.
func squares(c Coef, p, g []float32, s [MaxStates][]float32) {
	keep, add := c.squareFactors()
	v := s[0][:len(p)]
	g = g[:len(p)]
	for i, pi := range p {
		gi := c.gradient(pi, g[i])
		vi := float32(keep*v[i]) + float32(float32(add*gi)*gi)
		p[i] = pi - float32(c.size*float32(gi/(sqrt(vi)+c.eps)))
		v[i] = vi
	}
}
