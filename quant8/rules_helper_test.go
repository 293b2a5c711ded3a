package quant8

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// rules makes the optimizers with the constants of the goldens of package optim, by
// their names there, and those of trust.go.
var rules = map[string]func(s Options) (*Optimizer, error){
	"Adam decoupled": func(s Options) (*Optimizer, error) {
		return New(AdamW{Beta2: 0.99, WeightDecay: 0.1, DecayFirst: s.NearestCodes}, s)
	},
	"Adam coupled": func(s Options) (*Optimizer, error) {
		return New(Adam{Beta2: 0.99, WeightDecay: 0.1}, s)
	},
	"AdEMAMix": func(s Options) (*Optimizer, error) {
		return New(AdEMAMix{Beta2: 0.99, Beta3: 0.999, WeightDecay: 0.1, DecayFirst: s.NearestCodes}, s)
	},
	"Lion": func(s Options) (*Optimizer, error) {
		return New(Lion{WeightDecay: 0.1}, s)
	},
	"Momentum": func(s Options) (*Optimizer, error) {
		return New(SGD{WeightDecay: 0.1}, s)
	},
	"Momentum dampened": func(s Options) (*Optimizer, error) {
		return New(SGD{Dampening: 0.5, WeightDecay: 0.1}, s)
	},
	"Nesterov": func(s Options) (*Optimizer, error) {
		return New(SGD{Nesterov: true, WeightDecay: 0.1}, s)
	},
	"RMSprop": func(s Options) (*Optimizer, error) {
		return New(RMSprop{Alpha: 0.9, WeightDecay: 0.1}, s)
	},
	"Adagrad": func(s Options) (*Optimizer, error) {
		return New(Adagrad{WeightDecay: 0.1}, s)
	},
	"LAMB": func(s Options) (*Optimizer, error) {
		return New(LAMB{Beta2: 0.99, WeightDecay: 0.1}, s)
	},
	"Adafactor": func(s Options) (*Optimizer, error) {
		return New(Adafactor{WeightDecay: 0.1}, s)
	},
	"AdafactorMomentum": func(s Options) (*Optimizer, error) {
		return New(Adafactor{Beta1: 0.9, WeightDecay: 0.1}, s)
	},
	"ScheduleFree": func(s Options) (*Optimizer, error) {
		return New(ScheduleFree{Beta2: 0.99, WeightDecay: 0.1}, s)
	},
	"LARS": func(s Options) (*Optimizer, error) {
		return New(LARS{Trust: 0.02, WeightDecay: 0.1}, s)
	},
}

// eachRule runs test for every optimizer.
func eachRule(t *testing.T, test func(t *testing.T, build func(s Options, params map[string]int) *Optimizer)) {
	for name := range rules {
		t.Run(name, func(t *testing.T) {
			test(t, func(s Options, params map[string]int) *Optimizer { return newOf(t, name, s, params) })
		})
	}
}

// widths are those of a state.
var widths = []int{4, 8, 16, 32}

// newOf returns an optimizer with parameters.
func newOf(t testing.TB, rule string, s Options, params map[string]int) *Optimizer {
	t.Helper()
	a, err := rules[rule](s)
	require.NoError(t, err)
	for name, n := range params {
		require.NoError(t, a.Add(name, n))
	}
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}
