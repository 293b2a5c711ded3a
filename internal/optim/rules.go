package optim

import "math"

// Rule is an optimizer: a row of the table. quant8/kernels/rules.h has the same numbers.
//
// With g the gradient times a scale, one update of a
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
type Rule uint32

// The rules.
const (
	Adam Rule = iota
	AdEMAMix
	Momentum
	Nesterov
	Lion
	RMSprop
	Adagrad
	LAMB
	LARS
	Adafactor
	AdafactorMomentum
	Muon
	ScheduleFree
	rules
)

// row is what a rule is.
type row struct {
	name   string
	signed []bool // for every state, whether its values have signs
	// first8 says that the first state has the map with signs in blocks of 8 bits, though
	// its values have none.
	first8 bool
	needs  needs
	// decoupled says that weight decay is not part of the gradient.
	decoupled bool
	inUpdate  bool // weight decay is part of the update
	either    bool // weight decay is part of the gradient with Hyper.Coupled, and else decoupled
	loop      loop // of assembly
	// coef returns the factors with its own in place of the common ones; nil has none.
	coef func(h Hyper, c Coef) Coef
	// update is one step of vectors of one length.
	update func(c Coef, p, g []float32, s [MaxStates][]float32)
	// ratio returns the trust ratio for the norms of a parameter and its update; nil has none.
	ratio func(h Hyper, p, u float64) float64
	// updateOf sets u to the update; nil: what a step of update at a rate of 1 subtracts.
	updateOf func(c Coef, u, p, g []float32, s [MaxStates][]float32)
}

// loop is a loop of assembly, which several rules may have.
type loop uint8

const (
	goLoop loop = iota // none
	adamLoop
	ademamixLoop
	momentumLoop
	lionLoop
	squaresLoop
	lambLoop
	larsLoop
	scheduleFreeLoop
)

// needs is what a step of a rule has to know of a parameter.
type needs uint8

const (
	elements needs = iota // any range
	norms                 // norms of all elements
	factored              // these, and of a matrix the sums of rows and columns
	matrix                // all elements of a matrix
)

var (
	signed, unsigned = []bool{true}, []bool{false}
	firstSigned      = []bool{true, false}
)

var table = [rules]row{
	Adam:              {name: "Adam", signed: firstSigned, coef: Hyper.adam, update: adam, either: true, loop: adamLoop},
	AdEMAMix:          {name: "AdEMAMix", signed: []bool{true, true, false}, decoupled: true, coef: Hyper.ademamix, update: ademamix, loop: ademamixLoop},
	Momentum:          {name: "Momentum", signed: signed, coef: Hyper.momentum, update: momentum, loop: momentumLoop},
	Nesterov:          {name: "Nesterov", signed: signed, coef: Hyper.momentum, update: momentum, loop: momentumLoop},
	Lion:              {name: "Lion", signed: signed, decoupled: true, update: lion, loop: lionLoop},
	RMSprop:           {name: "RMSprop", signed: unsigned, first8: true, update: squares, loop: squaresLoop},
	Adagrad:           {name: "Adagrad", signed: unsigned, first8: true, update: squares, loop: squaresLoop},
	LAMB:              {name: "LAMB", signed: firstSigned, needs: norms, coef: Hyper.lamb, update: lamb, inUpdate: true, loop: lambLoop, ratio: lambRatio, updateOf: lambUpdate},
	LARS:              {name: "LARS", signed: signed, needs: norms, update: lars, loop: larsLoop, ratio: larsRatio, updateOf: larsUpdate},
	Adafactor:         {name: "Adafactor", signed: unsigned, needs: factored, decoupled: true, coef: Hyper.adafactor, update: adafactor, updateOf: adafactorUpdate},
	AdafactorMomentum: {name: "AdafactorMomentum", signed: firstSigned, needs: factored, decoupled: true, coef: Hyper.adafactor, update: adafactorMomentum, updateOf: adafactorMomentumUpdate},
	Muon:              {name: "Muon", signed: signed, needs: matrix, decoupled: true, coef: Hyper.muon, update: look},
	ScheduleFree:      {name: "ScheduleFree", signed: firstSigned, coef: Hyper.scheduleFree, update: scheduleFree, inUpdate: true, loop: scheduleFreeLoop},
}

// String returns the name of the rule, such as "Lion".
func (r Rule) String() string {
	if r >= rules {
		return "?"
	}
	return table[r].name
}

// Signed returns, for every state of the rule, whether its values have signs.
func (r Rule) Signed() []bool { return table[r].signed }

// Signed8 returns which states use the signed map in blocks of 8 bits: the states of Signed,
// and v of RMSprop and Adagrad. v is their first state in bitsandbytes, which gives it the
// signed map. Its negative entries are unused.
func (r Rule) Signed8() []bool {
	if table[r].first8 {
		return signed
	}
	return table[r].signed
}

// Ratio says whether the rule multiplies the learning rate by a trust ratio.
func (r Rule) Ratio() bool { return table[r].needs == norms }

// Trust says whether the step of the rule depends on norms over the whole parameter,
// by [Hyper.Sized].
func (r Rule) Trust() bool { return r.Ratio() || r.Factored() }

// Factored says whether [Factors] stand for the second moment of a matrix.
func (r Rule) Factored() bool { return table[r].needs == factored }

// Whole says whether a step of the rule needs all elements of the parameter.
func (r Rule) Whole() bool { return table[r].needs != elements }

func (h Hyper) adam(c Coef) Coef {
	c1, c2 := h.corrections()
	c.size = float32(rate(h.LR, h.Ratio))
	if !h.Uncorrected {
		c.size = float32(rate(h.LR, h.Ratio) * c2 / c1)
	}
	if !h.PlainEps {
		c.eps = float32(h.Eps * c2)
	}
	return c
}

func (h Hyper) ademamix(c Coef) Coef {
	c1, c2 := h.corrections()
	h = h.Warm(h.AlphaWarmup, h.Beta3Warmup)
	c.beta3, c.rest3 = float32(h.Beta3), float32(1-h.Beta3)
	c.scale1, c.scale2, c.root = float32(1/c1), float32(h.Alpha), float32(1/c2)
	return c
}

func (h Hyper) momentum(c Coef) Coef {
	if h.Shares {
		c = h.adam(c)
		c.scale1 = 1
		return c
	}
	c.rest1 = float32(1 - h.Dampening)
	if h.Step == 1 {
		c.beta1, c.rest1 = 0, 1
	}
	c.scale1, c.scale2 = 1, 0
	if h.Rule == Nesterov {
		c.scale1, c.scale2 = float32(h.Beta1), 1
	}
	return c
}

func (h Hyper) lamb(c Coef) Coef {
	c1, c2 := h.corrections()
	c.scale1, c.scale2, c.root = float32(1/c1), float32(h.WeightDecay), float32(1/c2)
	return c
}

func (h Hyper) adafactor(c Coef) Coef {
	rest := h.power()
	c.size, c.beta2, c.rest2 = float32(h.Size), float32(1-rest), float32(rest)
	return c
}

func (h Hyper) muon(c Coef) Coef {
	c.size, c.scale1 = float32(h.Size), 1
	if h.Nesterov {
		c.scale1, c.scale2 = c.beta1, c.rest1
	}
	return c
}

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

func lamb(c Coef, p, g []float32, s [MaxStates][]float32) {
	m, v := s[0][:len(p)], s[1][:len(p)]
	g = g[:len(p)]
	for i, pi := range p {
		mi, vi, u := c.direction(pi, g[i], m[i], v[i])
		m[i], v[i], p[i] = mi, vi, pi-float32(c.size*u)
	}
}

func lars(c Coef, p, g []float32, s [MaxStates][]float32) {
	m := s[0][:len(p)]
	g = g[:len(p)]
	for i, pi := range p {
		mi := float32(c.beta1*m[i]) + float32(c.size*c.gradient(pi, g[i]))
		m[i], p[i] = mi, pi-mi
	}
}

func lambRatio(_ Hyper, p, u float64) float64 { return p / u }

func lambUpdate(c Coef, u, p, g []float32, s [MaxStates][]float32) {
	m, v := s[0][:len(u)], s[1][:len(u)]
	for i, pi := range p {
		_, _, u[i] = c.direction(pi, g[i], m[i], v[i])
	}
}

func larsRatio(h Hyper, p, u float64) float64 { return h.Trust * p / (u + float64(h.WeightDecay*p)) }

func larsUpdate(c Coef, u, _, g []float32, _ [MaxStates][]float32) {
	for i, x := range g {
		u[i] = float32(x * c.gradScale)
	}
}

// scheduleFree sets beta1 and rest1 to the factors of m and u in the new m.
func (h Hyper) scheduleFree(c Coef) Coef {
	_, c2 := h.corrections()
	keep, lr := 1-h.Share, rate(h.LR, h.Ratio)
	c.beta1, c.rest1 = float32(keep), float32(lr*h.Beta1*keep)
	c.scale1, c.scale2, c.root = float32(h.Share), float32(h.WeightDecay), float32(1/c2)
	c.size = float32(lr * (1 - float64(h.Beta1*keep)))
	return c
}

func scheduleFree(c Coef, p, g []float32, s [MaxStates][]float32) {
	m, v := s[0][:len(p)], s[1][:len(p)]
	g = g[:len(p)]
	for i, pi := range p {
		gi := float32(g[i] * c.gradScale)
		vi := float32(c.beta2*v[i]) + float32(float32(c.rest2*gi)*gi)
		u := gi / (float32(sqrt(vi)*c.root) + c.eps)
		if c.scale2 != 0 {
			u += float32(c.scale2 * pi)
		}
		p[i] = (pi + float32(c.scale1*m[i])) - float32(c.size*u)
		m[i] = float32(c.beta1*m[i]) - float32(c.rest1*u)
		v[i] = vi
	}
}

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

func adafactor(c Coef, p, g []float32, s [MaxStates][]float32) { c.factored(p, g, nil, s[0]) }

func adafactorMomentum(c Coef, p, g []float32, s [MaxStates][]float32) {
	c.factored(p, g, s[0], s[1])
}

func adafactorUpdate(c Coef, u, _, g []float32, s [MaxStates][]float32) {
	c.factoredUpdate(u, g, s[0])
}

func adafactorMomentumUpdate(c Coef, u, _, g []float32, s [MaxStates][]float32) {
	c.factoredUpdate(u, g, s[1])
}

// Subtracting returns the factors with which [Coef.Apply] subtracts size times u.
func (h Hyper) Subtracting(size float64) Coef {
	h.Rule, h.DecayFirst, h.Size = Muon, true, size
	return h.Coef()
}
