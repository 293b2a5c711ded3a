package quant8

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// rules makes the optimizers with the constants of the goldens of package optim, by
// their names there, and those of trust.go.
var rules = map[string]func(s StateOptions) (*Optimizer, error){
	"Adam decoupled": func(s StateOptions) (*Optimizer, error) {
		return NewAdamW(AdamWOptions{
			Beta2: 0.99, WeightDecay: 0.1, Bits: s.Bits, Block: s.Block, Min8bit: s.Min8bit, Keep32: s.Keep32,
			Order: s.Order, Map1: s.Map1, Map2: s.Map2, Storage: s.Storage, Chunk: s.Chunk, StepOptions: s.StepOptions,
		})
	},
	"Adam coupled": func(s StateOptions) (*Optimizer, error) {
		return NewAdam(AdamOptions{Beta2: 0.99, WeightDecay: 0.1, StateOptions: s})
	},
	"AdEMAMix": func(s StateOptions) (*Optimizer, error) {
		return NewAdEMAMix(AdEMAMixOptions{Beta2: 0.99, Beta3: 0.999, WeightDecay: 0.1, StateOptions: s})
	},
	"Lion": func(s StateOptions) (*Optimizer, error) {
		return NewLion(LionOptions{WeightDecay: 0.1, StateOptions: s})
	},
	"Momentum": func(s StateOptions) (*Optimizer, error) {
		return NewSGD(SGDOptions{WeightDecay: 0.1, StateOptions: s})
	},
	"Momentum dampened": func(s StateOptions) (*Optimizer, error) {
		return NewSGD(SGDOptions{Dampening: 0.5, WeightDecay: 0.1, StateOptions: s})
	},
	"Nesterov": func(s StateOptions) (*Optimizer, error) {
		return NewSGD(SGDOptions{Nesterov: true, WeightDecay: 0.1, StateOptions: s})
	},
	"RMSprop": func(s StateOptions) (*Optimizer, error) {
		return NewRMSprop(RMSpropOptions{Alpha: 0.9, WeightDecay: 0.1, StateOptions: s})
	},
	"Adagrad": func(s StateOptions) (*Optimizer, error) {
		return NewAdagrad(AdagradOptions{WeightDecay: 0.1, StateOptions: s})
	},
	"LAMB": func(s StateOptions) (*Optimizer, error) {
		return NewLAMB(LAMBOptions{Beta2: 0.99, WeightDecay: 0.1, StateOptions: s})
	},
	"Adafactor": func(s StateOptions) (*Optimizer, error) {
		return NewAdafactor(AdafactorOptions{WeightDecay: 0.1, StateOptions: s})
	},
	"AdafactorMomentum": func(s StateOptions) (*Optimizer, error) {
		return NewAdafactor(AdafactorOptions{Beta1: 0.9, WeightDecay: 0.1, StateOptions: s})
	},
	"LARS": func(s StateOptions) (*Optimizer, error) {
		return NewLARS(LARSOptions{Trust: 0.02, WeightDecay: 0.1, StateOptions: s})
	},
}

// eachRule runs test for every optimizer.
func eachRule(t *testing.T, test func(t *testing.T, build func(s StateOptions, params map[string]int) *Optimizer)) {
	for name := range rules {
		t.Run(name, func(t *testing.T) {
			test(t, func(s StateOptions, params map[string]int) *Optimizer { return newOf(t, name, s, params) })
		})
	}
}

// widths are those of a state.
var widths = []int{4, 8, 16, 32}

// newOf returns an optimizer with parameters.
func newOf(t testing.TB, rule string, s StateOptions, params map[string]int) *Optimizer {
	t.Helper()
	a, err := rules[rule](s)
	require.NoError(t, err)
	for name, n := range params {
		require.NoError(t, a.Add(name, n))
	}
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	return a
}
