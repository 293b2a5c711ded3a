package optim

import (
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// golden is what testdata/make.py wrote.
type golden struct {
	Start     []float32
	Gradients [][]float32
	After     map[string][][]float32 // steps 1, 2, 10 and 20
}

func readGolden(t *testing.T) (g golden) {
	data, err := os.ReadFile("testdata/rules.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

// run makes the golden steps and returns the parameters after each.
func run(g golden, h Hyper) (after [][]float32) {
	p := append([]float32(nil), g.Start...)
	var s [3][]float32
	for i := range h.Rule.Signed() {
		s[i] = make([]float32, len(p))
	}
	for t, grad := range g.Gradients {
		h.Step, h.GradScale = t+1, 0.5
		c := h.Coef()
		scaled := append([]float32(nil), grad...)
		for i := range scaled {
			scaled[i] *= 2
		}
		c.Update(p, scaled, s)
		after = append(after, append([]float32(nil), p...))
	}
	return after
}

// TestGolden: parameters are those of torch and of bitsandbytes within their own
// bounds, 1e-6 and 1e-5, over 20 steps.
func TestGolden(t *testing.T) {
	g := readGolden(t)
	both := Hyper{LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1}
	with := func(r Rule, change func(h *Hyper)) Hyper {
		h := both
		h.Rule = r
		change(&h)
		return h
	}
	same := func(*Hyper) {}
	hypers := map[string]Hyper{
		"Adam decoupled":    with(Adam, func(h *Hyper) { h.DecayFirst = true }),
		"Adam coupled":      with(Adam, func(h *Hyper) { h.Coupled = true }),
		"Momentum":          with(Momentum, same),
		"Momentum dampened": with(Momentum, func(h *Hyper) { h.Dampening = 0.5 }),
		"Nesterov":          with(Nesterov, same),
		"RMSprop":           with(RMSprop, same),
		"Adagrad":           with(Adagrad, func(h *Hyper) { h.Eps = 1e-10 }),
		"Lion":              with(Lion, func(h *Hyper) { h.DecayFirst = true }),
		"AdEMAMix":          with(AdEMAMix, func(h *Hyper) { h.DecayFirst, h.Beta3, h.Alpha = true, 0.999, 5 }),
	}
	require.Len(t, g.After, len(hypers))
	for name, want := range g.After {
		got := run(g, hypers[name])
		for k, step := range []int{1, 2, 10, 20} {
			for i, w := range want[k] {
				diff := math.Abs(float64(got[step-1][i] - w))
				require.LessOrEqual(t, diff, 1e-6+1e-5*math.Abs(float64(w)), "%s: step %d, element %d: %v, want %v", name, step, i, got[step-1][i], w)
			}
		}
	}
}
