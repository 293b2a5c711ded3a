package quant8

import "reflect"

// Unit is the least of a parameter that a step of a rule takes.
type Unit uint8

const (
	// Element is any range of elements, see [Optimizer.StepRange].
	Element Unit = iota
	// Parameter is all elements of a parameter, or of a block of it: their norms or means are part of the step.
	Parameter
	// Matrix is all of a matrix that [Optimizer.AddMatrix] added. Other parameters have Element.
	Matrix
)

// Traits is what programs ask of a rule, see [TraitsOf]. The zero value belongs to no rule.
type Traits struct {
	Name         string // in plans and commands; [RuleNamed] takes it
	Title        string // in errors, saved states and the keys of a [Storage]
	About        string // what it is good for, in help
	Unit         Unit
	Shards       bool    // [Optimizer.AddShard] takes any part of a parameter, without Options.SumNorms
	Devices      bool    // all steps are made on any device; otherwise steps of Unit are made on the CPU only
	Shaped       bool    // rows and columns decide what a matrix keeps, see [Optimizer.AddMatrix]
	MatricesOnly bool    // [Optimizer.Add] is an error: leave vectors and embeddings to another rule
	Blocks       bool    // [ParamOptions].Shared counts
	Averages     bool    // a model is evaluated with averages of its parameters, see [Optimizer.Average]
	ForwardOnly  bool    // steps take losses and no gradients, and there is no state: see [NewZerothOrder]
	Folds        bool    // [Optimizer.FoldInBackward] takes the rule
	States       int     // states of an element, each of Options.Bits; [StateBytes] returns the bytes
	Numbers      int     // numbers of 8 bytes that an optimizer keeps once for all parameters
	Rank         int     // directions onto which a gradient is projected, see [WithRank]; 0: it is not projected
	BitsAndBytes string  // optimizers of bitsandbytes that go on from a state, see [Optimizer.WriteBitsAndBytes]; empty: none
	Full         Setting // for fine-tuning all weights of a language model
	Adapters     Setting // for fine-tuning adapters of low rank
}

// Setting is a rule with usual hyperparameters for fine-tuning. Its Rule is nil if the rule is not for that.
type Setting struct {
	Rule       Rule
	Rate       float64 // usual peak of the learning rate
	Preference float64 // the same for learning preferences, as by DPO, after TRL's defaults; 0 if the rule is not for that
}

// Use is something that a program asks of a rule beside a step of a whole gradient in memory on the CPU.
type Use uint8

const (
	InBackward Use = iota // a step as soon as a gradient is complete, which is then gone
	Folded                // gradients of several micro-batches one after the other, see [Optimizer.FoldInBackward]
	Sharded               // parts of parameters on several processes
	Paged                 // parts of parameters, whose state lies in pages
	OnDevice              // parameters on a device other than the CPU
	Reduced               // gradients that several processes add
)

// Refuses returns why a rule is not for a use, and an empty string if it is.
func (t Traits) Refuses(u Use) string {
	switch {
	case t.ForwardOnly && u != Paged && u != OnDevice:
		return "it has no gradients"
	case t.Averages && (u == InBackward || u == Sharded):
		return "the memory of all gradients holds the parameters that train while their averages are evaluated"
	case u == Folded && !t.Folds:
		return "its update needs the whole gradient"
	case u == OnDevice && !t.Devices:
		return "its steps are made on the CPU"
	case t.Shards || t.ForwardOnly || u != Sharded && u != Paged:
		return ""
	case t.Unit == Matrix:
		return "its step takes whole matrices"
	case t.Unit == Parameter:
		return "its step takes whole parameters"
	}
	return "it keeps numbers of whole parameters"
}

// Conflict says why what a program calls a use does not go with a rule, and returns an empty string if it does.
func (t Traits) Conflict(what string, u Use) string {
	if why := t.Refuses(u); why != "" {
		return what + " does not go with the optimizer " + t.Name + ": " + why
	}
	return ""
}

// TraitsOf returns the traits of a rule of this package, and zero traits for others.
func TraitsOf(rule Rule) Traits {
	if !known(rule) {
		return Traits{}
	}
	e := rule.equation()
	t := e.Traits
	t.Folds = t.Folds && !(e.hyper.Coupled && e.hyper.WeightDecay != 0)
	if !t.ForwardOnly {
		t.States = len(e.hyper.Rule.Signed())
	}
	return t
}

// known says whether a rule is a type of this package. A pointer to one, or a struct
// around one, may be nil inside.
func known(rule Rule) bool {
	for _, r := range allRules {
		if reflect.TypeOf(r) == reflect.TypeOf(rule) {
			return true
		}
	}
	return false
}

// WithRank returns a rule with this many directions, 0 for its default, and false if its Traits.Rank is 0.
func WithRank(rule Rule, rank int) (Rule, bool) {
	r, ok := rule.(interface{ withRank(rank int) Rule })
	if !ok || !known(rule) {
		return rule, false
	}
	return r.withRank(rank), true
}

// SavedNumbers returns Traits.Numbers of the rule with a Title.
func SavedNumbers(title string) int {
	for _, r := range allRules {
		if t := r.equation().Traits; t.Title == title {
			return t.Numbers
		}
	}
	return 0
}
