package optim

import "math"

// Hyper are the constants of one step. A rule reads the constants in its equations;
// β1 is also called μ or α.
type Hyper struct {
	Rule                    Rule
	LR, Beta1, Beta2, Beta3 float64
	Alpha                   float64 // α
	AlphaWarmup             int     // steps over which Alpha grows, see Warm
	Beta3Warmup             int     // the same of Beta3
	Dampening               float64 // d
	Trust                   float64 // η
	Eps, WeightDecay        float64
	Eps2                    float64  // the minimum rms(p) that a step size α takes
	Clip                    float64  // d
	Tau                     float64  // τ
	Share                   float64  // c of an average
	Size                    float64  // of the step, by Sized or of a matrix
	Factors                 *Factors // of a matrix, instead of v
	Ratio                   float64  // factor of LR in the update, by Sized; 0 means 1
	Nesterov                bool     // of a matrix
	Coupled                 bool     // weight decay in the gradient, where it could be decoupled
	PlainEps                bool     // ε in place of ε·c2
	Uncorrected             bool     // no bias corrections of the step
	Shares                  bool     // first moments alone, with step sizes of [Shared]
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

// Adam says whether these are the factors of two moments without coupled decay, for which there
// are faster loops.
func (c *Constants) Adam() bool { return table[c.rule].loop == adamLoop && c.l2 == 0 }

// AdamFactors returns these factors in the order of the faster loops.
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
	row := &table[h.Rule]
	if row.coef != nil {
		c = row.coef(h, c)
	}
	decay := float32(1 - float64(h.LR*h.WeightDecay))
	switch {
	case row.inUpdate: // in scale2
	case h.Shares:
		c.pre = decay
	case !row.decoupled && (!row.either || h.Coupled):
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

// Corrected returns c2/c1, by which the bias corrections multiply a step.
func (h Hyper) Corrected() float64 {
	c1, c2 := h.corrections()
	return c2 / c1
}

// corrections returns the bias corrections c1 and c2 of two moments.
func (h Hyper) corrections() (c1, c2 float64) {
	return 1 - power(h.Beta1, h.Step), math.Sqrt(1 - power(h.Beta2, h.Step))
}
