package quant8

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
)

// Rule is the equation of an optimizer with its hyperparameters: [AdamW], [Adam],
// [AdEMAMix], [Lion], [SGD], [RMSprop], [Adagrad], [LAMB], [LARS], [Adafactor],
// [Muon], [Apollo], [GaLore], [SOAP], [ScheduleFree], [Prodigy] or [AdamMini], or [MeZO], which is for [NewMeZO] and not
// for [New]. A hyperparameter of 0 means its default. Hyperparameters are float32, those of PyTorch and of the authors'
// packages float64: with a β2 of 0.999, 1-β2 is smaller than theirs by 1.3e-5 of it. OPTIMIZERS.md compares the rules.
type Rule interface {
	equation() equation
}

// known says whether a rule is a type of this package. A pointer to one, or a struct
// around one, may be nil inside.
func known(rule Rule) bool {
	switch rule.(type) {
	case AdamW, Adam, AdEMAMix, Lion, SGD, RMSprop, Adagrad, LAMB, LARS, Adafactor, Muon, Apollo, GaLore, SOAP, ScheduleFree, Prodigy, AdamMini:
		return true
	}
	return false
}

// equation is a rule in the form of the engine.
type equation struct {
	name    string      // of the optimizer
	hyper   optim.Hyper // without the step count and the gradient scale
	warmup  [2]int      // steps of AdEMAMix's α and β3
	scale   MuonScale
	low     lowRank // of Apollo and GaLore
	soap    turning
	prodigy distances
	mini    bool       // AdamMini
	powers  [2]float64 // of the step and of the rate, in the weights of ScheduleFree's average
	err     error      // the first error of number
}

// Elementwise reports whether a step of some elements of a parameter is that part of a step of the whole parameter, so
// that [Optimizer.AddShard] takes any part. It is false for [MeZO], which has no gradients.
func Elementwise(rule Rule) bool {
	if !known(rule) {
		return false
	}
	e := rule.equation()
	return !e.takesWhole()
}

// takesWhole says whether a step takes whole matrices or parameters.
func (e *equation) takesWhole() bool {
	return e.hyper.Whole() || e.low.rank > 0 || e.soap.frequency > 0 || e.prodigy.every > 0 || e.mini
}

// number sets a hyperparameter to x, or to the default if x is 0. It must be a normal number
// above 0 and below most: products of a smaller one can be 0, and steps then NaN.
func (e *equation) number(name string, to *float64, x, standard, most float32) {
	if x == 0 {
		x = standard
	}
	if *to = float64(x); !(x >= 0x1p-126 && x < most) {
		e.refuse("%s is %g, want a number between 0 and %g", name, x, most)
	}
}

// refuse sets err, unless it is set.
func (e *equation) refuse(format string, args ...any) {
	if e.err == nil {
		e.err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), snug.ErrConfig)
	}
}

func (e *equation) check() error {
	if e.err != nil {
		return e.err
	}
	if decay := e.hyper.WeightDecay; !(decay >= 0 && decay < math.MaxFloat32) {
		return fmt.Errorf("WeightDecay is %g, want a finite number from 0 on: %w", decay, snug.ErrConfig)
	}
	return nil
}

// StateBytes returns the bytes of state that an optimizer of a rule keeps for a
// parameter. The shape is n for a vector, and rows, cols for a matrix. For n elements and
// s states it is s·(4·⌈n/Block⌉ + n) with 8 bits, s·(4·⌈n/Block⌉ + ⌈n/2⌉) with 4, 2·s·n
// with 16 and 4·s·n with 32. For n below MinSize it is 4·s·n with every width. A matrix
// of [Adafactor] has 4·(rows+cols) bytes instead of one of the states, and one of [Apollo],
// [GaLore] or [SOAP] has the bytes that the rule states. Options.Keep32 is
// not called. StateBytes is 0 if [New], [Optimizer.Add] or [Optimizer.AddMatrix] refuses
// the rule, the options or the shape.
func StateBytes(rule Rule, o Options, shape ...int) int64 {
	o.Keep32 = nil
	all, err := newOptions(rule, o)
	if err != nil {
		return 0
	}
	n, s, err := all.elements(shape)
	if err != nil || n < 0 || int64(n) > math.MaxInt64/32 || all.checkMatrix(n, s) != nil {
		return 0
	}
	return s.stateBytes(all.layoutOf(all.width("", s.held(n)), s), n)
}
