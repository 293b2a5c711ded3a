package quant8

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/optim"
)

// Rule is the equation of an optimizer with its hyperparameters: [AdamW], [Adam],
// [AdEMAMix], [Lion], [SGD], [RMSprop], [Adagrad], [LAMB], [LARS], [Adafactor],
// [Muon], [Apollo], [GaLore], [SOAP], [ScheduleFree], [Prodigy] or [AdamMini], or [MeZO], which is for [NewZerothOrder] and
// not for [New]. A hyperparameter of 0 means its default. Hyperparameters are float32, those of PyTorch and of the authors'
// packages float64: with a β2 of 0.999, 1-β2 is smaller than theirs by 1.3e-5 of it. OPTIMIZERS.md compares the rules, and
// [TraitsOf] says what a rule needs and what it is for.
type Rule interface {
	equation() equation
}

// allRules are all rules, with the hyperparameters for which their names stand.
var allRules = [...]Rule{
	AdamW{}, Adam{}, AdEMAMix{}, Lion{}, SGD{}, RMSprop{}, Adagrad{}, LAMB{}, LARS{}, Adafactor{}, Muon{}, Apollo{}, Apollo{Tensor: true},
	GaLore{}, SOAP{}, ScheduleFree{}, Prodigy{SliceP: 11}, AdamMini{}, MeZO{},
}

// Default is the rule of those who name none.
func Default() Rule { return AdamW{} }

// Names returns the names of all rules, sorted.
func Names() []string {
	var names []string
	for _, r := range allRules {
		names = append(names, r.equation().Name)
	}
	slices.Sort(names)
	return names
}

// RuleNamed returns the rule with a Traits.Name. The error wraps [snug.ErrConfig] and lists the names.
func RuleNamed(name string) (Rule, error) {
	for _, r := range allRules {
		if r.equation().Name == name {
			return r, nil
		}
	}
	return nil, fmt.Errorf("quant8: optimizer %.40q, want one of %s: %w", name, strings.Join(Names(), ", "), snug.ErrConfig)
}

// equation is a rule in the form of an optimizer.
type equation struct {
	Traits
	hyper  optim.Hyper // without the step count and the gradient scale
	method method      // of a new optimizer; nil: plain
	err    error       // the first error of number
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

// moments sets the decay of the two moments of Adam.
func (e *equation) moments(beta1, beta2 float32) {
	e.number("Beta1", &e.hyper.Beta1, beta1, 0.9, 1)
	e.number("Beta2", &e.hyper.Beta2, beta2, 0.999, 1)
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
// of a rule whose Traits are Shaped has the bytes that the rule states. Options.Keep32 is
// not called. StateBytes is 0 if [New], [Optimizer.Add] or [Optimizer.AddMatrix] refuses
// the rule, the options or the shape.
func StateBytes(rule Rule, o Options, shape ...int) int64 {
	o.Keep32 = nil
	all, err := newOptions(rule, o)
	if err != nil {
		return 0
	}
	p, err := parameter(shape)
	if err != nil || p.n < 0 || int64(p.n) > math.MaxInt64/32 {
		return 0
	}
	e, err := all.method.engine(&all, p)
	if err != nil {
		return 0
	}
	f := e.keeps()
	return f.stateBytes(all.layoutOf(all.width("", f.held(p.n)), f), p.n)
}
