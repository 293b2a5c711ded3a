package optim

import "math"

// Trust says whether the step of the rule depends on norms over the whole parameter,
// by [Hyper.Sized].
func (r Rule) Trust() bool { return r == LAMB || r == LARS || r.Factored() }

// Whole says whether a step needs all elements of the parameter.
func (r Rule) Whole() bool { return r.Trust() || r == Muon }

// Sized returns h with the step size for a parameter of n elements, given the sums of
// [Coef.Squares] over all of them.
func (h Hyper) Sized(parameter, update float64, n int) Hyper {
	if h.Rule.Factored() {
		h.Size = h.size(parameter, update, n)
	} else {
		h.LR *= h.ratio(parameter, update)
	}
	return h
}

// ratio returns the trust ratio of a parameter, by which the learning rate is
// multiplied. It is 1 where a norm is 0.
func (h Hyper) ratio(parameter, update float64) float64 {
	p, u := math.Sqrt(parameter), math.Sqrt(update)
	switch {
	case p == 0 || u == 0:
		return 1
	case h.Rule == LARS:
		return h.Trust * p / (u + float64(h.WeightDecay*p))
	}
	return p / u
}

// Squares returns the sum of the squares of the parameter and that of u or of
// LARS's gradient before it decays. The slices are those of [Coef.Update], of which it
// writes none. Squares of float32 are exact in float64, so that the sums round alike
// with fused multiplications and without.
func (c *Coef) Squares(p, g []float32, s [MaxStates][]float32) (parameter, update float64) {
	if c.rule.Factored() {
		return c.adafactorSquares(p, g, s)
	}
	m, v := s[0][:len(p)], s[1]
	g = g[:len(p)]
	for i, pi := range p {
		u := float32(g[i] * c.gradScale)
		if c.rule == LAMB {
			_, _, u = c.direction(pi, g[i], m[i], v[i])
		}
		parameter += float64(pi) * float64(pi)
		update += float64(u) * float64(u)
	}
	return parameter, update
}

// direction returns the new moments and u of LAMB.
func (c *Coef) direction(p, g, m, v float32) (mi, vi, u float32) {
	g = float32(g * c.gradScale)
	mi = float32(c.beta1*m) + float32(c.rest1*g)
	vi = float32(c.beta2*v) + float32(float32(c.rest2*g)*g)
	u = float32(c.scale1*mi) / (float32(sqrt(vi)*c.root) + c.eps)
	if c.scale2 != 0 {
		u += float32(c.scale2 * p)
	}
	return mi, vi, u
}

func (c *Coef) lamb(p, g, m, v []float32) {
	g, m, v = g[:len(p)], m[:len(p)], v[:len(p)]
	for i, pi := range p {
		mi, vi, u := c.direction(pi, g[i], m[i], v[i])
		m[i], v[i], p[i] = mi, vi, pi-float32(c.size*u)
	}
}

func (c *Coef) lars(p, g, m []float32) {
	g, m = g[:len(p)], m[:len(p)]
	for i, pi := range p {
		mi := float32(c.beta1*m[i]) + float32(c.size*c.gradient(pi, g[i]))
		m[i], p[i] = mi, pi-mi
	}
}
