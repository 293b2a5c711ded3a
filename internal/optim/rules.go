package optim

// Rule is an optimizer: a row of the table. quant8/kernels/rules.h has the same numbers.
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
	// coef returns the factors with its own in place of the common ones; nil has none.
	coef func(h Hyper, c Coef) Coef
	// update is one step of vectors of one length.
	update func(c Coef, p, g []float32, s [MaxStates][]float32)
}

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
	Adam:              {name: "Adam", signed: firstSigned, coef: Hyper.adam, update: adam},
	AdEMAMix:          {name: "AdEMAMix", signed: []bool{true, true, false}, decoupled: true, coef: Hyper.ademamix, update: ademamix},
	Momentum:          {name: "Momentum", signed: signed, coef: Hyper.momentum, update: momentum},
	Nesterov:          {name: "Nesterov", signed: signed, coef: Hyper.momentum, update: momentum},
	Lion:              {name: "Lion", signed: signed, decoupled: true, update: lion},
	RMSprop:           {name: "RMSprop", signed: unsigned, first8: true, update: squares},
	Adagrad:           {name: "Adagrad", signed: unsigned, first8: true, update: squares},
	LAMB:              {name: "LAMB", signed: firstSigned, needs: norms, coef: Hyper.lamb, update: lamb},
	LARS:              {name: "LARS", signed: signed, needs: norms, update: lars},
	Adafactor:         {name: "Adafactor", signed: unsigned, needs: factored, decoupled: true, coef: Hyper.adafactor, update: adafactor},
	AdafactorMomentum: {name: "AdafactorMomentum", signed: firstSigned, needs: factored, decoupled: true, coef: Hyper.adafactor, update: adafactorMomentum},
	Muon:              {name: "Muon", signed: signed, needs: matrix, decoupled: true, coef: Hyper.muon, update: look},
	ScheduleFree:      {name: "ScheduleFree", signed: firstSigned, coef: Hyper.scheduleFree, update: scheduleFree},
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

// Averages says whether the model is evaluated with an average of the parameters in training, see [Averaging].
func (r Rule) Averages() bool { return r == ScheduleFree }

// Ratio says whether the rule multiplies the learning rate by a trust ratio.
func (r Rule) Ratio() bool { return table[r].needs == norms }

// Trust says whether the step of the rule depends on norms over the whole parameter,
// by [Hyper.Sized].
func (r Rule) Trust() bool { return r.Ratio() || r.Factored() }

// Factored says whether [Factors] stand for the second moment of a matrix.
func (r Rule) Factored() bool { return table[r].needs == factored }

// Whole says whether a step of the rule needs all elements of the parameter.
func (r Rule) Whole() bool { return table[r].needs != elements }
