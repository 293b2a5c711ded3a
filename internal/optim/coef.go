package optim

import "math"

// Hyper are the constants of one step. A rule reads the constants in its equations;
// β1 is also called μ (Momentum, Nesterov, LARS, Muon) or α (RMSprop).
type Hyper struct {
	Rule                    Rule
	LR, Beta1, Beta2, Beta3 float64
	Alpha                   float64 // of AdEMAMix
	AlphaWarmup             int     // steps over which Alpha grows, see Warm
	Beta3Warmup             int     // the same of Beta3
	Dampening               float64 // d
	Trust                   float64 // η
	Eps, WeightDecay        float64
	Eps2                    float64  // the minimum rms(p) that Adafactor's α takes
	Clip                    float64  // d of Adafactor
	Tau                     float64  // τ
	Share                   float64  // c of ScheduleFree
	Size                    float64  // of the step of Adafactor, by Sized, and of Muon
	Factors                 *Factors // of a matrix of Adafactor, instead of v
	Ratio                   float64  // factor of LR in the update, by Sized; 0 means 1
	Nesterov                bool     // Muon
	Coupled                 bool     // Adam with weight decay in the gradient
	PlainEps                bool     // Adam with ε in place of ε·c2
	Uncorrected             bool     // Adam without bias corrections of the step
	Shares                  bool     // Momentum with the factors of Adam-mini, see [Shared]
	DecayFirst              bool     // decoupled decay before the update, as in torch
	Step                    int      // t, from 1
	GradScale               float32
	// MaxUpdate is the largest norm of an update, before the learning rate, divided
	// by the norm of the parameter; 0 means no limit. See [Hyper.Sized].
	MaxUpdate float64
	// Skip is the smallest magnitude of g·GradScale, as bits, at which an element is
	// left unchanged and its states become 0; 0 skips none. NaNs are above all numbers.
	Skip uint32
	Fold Fold
}

// Fold is the part of a step that one of several gradients makes, which together are the gradient of
// the step. The zero value is a whole step.
type Fold struct {
	Later   bool    // a gradient came before: moments do not decay again, nor is coupled decay added
	More    bool    // another comes: the parameter stays as it is
	Squares float64 // factor of the squares in v; 0 means 1
}

// Folds says whether a step of the rule can be made from several gradients, one after the other: whether
// its update needs only what the states hold.
func (r Rule) Folds() bool { return r == Adam || r == AdEMAMix || r == Momentum }

// Coef are the factors of one step.
type Coef struct {
	Constants
	skip    uint32
	factors *Factors
	shared  *Shared
}

// Constants are the factors of one step that are numbers, rounded to float32 once. The
// struct Factors of quant8/kernels/rules.h has the same fields, all of 4 bytes, and the
// numbers of the rules.
type Constants struct {
	rule         Rule
	beta1, rest1 float32
	beta2, rest2 float32
	beta3, rest3 float32
	scale1       float32 // what m counts in a sum with n or g
	scale2       float32 // what n, g or p counts there
	size         float32 // of the step
	eps          float32
	root         float32 // what √v is multiplied by
	gradScale    float32
	l2           float32 // coupled decay
	pre, post    float32 // decoupled decay
}

// Adam says whether these are the factors of Adam without coupled decay, for which there
// are faster loops.
func (c *Constants) Adam() bool { return c.rule == Adam && c.l2 == 0 }

// AdamFactors returns the factors of Adam in the order of the faster loops.
func (c *Constants) AdamFactors() [9]float32 {
	return [...]float32{c.beta1, c.rest1, c.beta2, c.rest2, c.gradScale, c.size, c.eps, c.pre, c.post}
}

// Coef derives the factors in float64.
func (h Hyper) Coef() Coef {
	c := Coef{skip: h.Skip, factors: h.Factors, Constants: Constants{
		rule:  h.Rule,
		beta1: float32(h.Beta1), rest1: float32(1 - h.Beta1),
		beta2: float32(h.Beta2), rest2: float32(1 - h.Beta2),
		beta3: float32(h.Beta3), rest3: float32(1 - h.Beta3),
		size: float32(rate(h.LR, h.Ratio)), eps: float32(h.Eps), root: 1, gradScale: h.GradScale, pre: 1, post: 1,
	}}
	if row := &table[h.Rule]; row.coef != nil {
		c = row.coef(h, c)
	}
	decay := float32(1 - float64(h.LR*h.WeightDecay))
	switch {
	case h.Rule == LAMB || h.Rule == ScheduleFree: // in scale2
	case h.Shares:
		c.pre = decay
	case !table[h.Rule].decoupled && (h.Rule != Adam || h.Coupled):
		c.l2 = float32(h.WeightDecay)
	case h.DecayFirst:
		c.pre = decay
	default:
		c.post = decay
	}
	return h.Fold.apply(c)
}

func (f Fold) apply(c Coef) Coef {
	if f.Later {
		c.beta1, c.beta2, c.beta3, c.l2 = 1, 1, 1, 0
	}
	if f.More {
		c.size, c.pre, c.post = 0, 1, 1
	}
	if f.Squares != 0 {
		c.rest2 = float32(float64(c.rest2) * f.Squares)
	}
	return c
}

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

// Corrected returns c2/c1, by which the bias corrections multiply a step of Adam.
func (h Hyper) Corrected() float64 {
	c1, c2 := h.corrections()
	return c2 / c1
}

// corrections returns the bias corrections c1 and c2 of Adam's moments.
func (h Hyper) corrections() (c1, c2 float64) {
	return 1 - power(h.Beta1, h.Step), math.Sqrt(1 - power(h.Beta2, h.Step))
}
