package optim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// tiersAgree compares an update of every tier with the Go loops, bit by bit.
func tiersAgree(t *rapid.T) {
	n := rapid.IntRange(0, 130).Draw(t, "elements")
	skip := rapid.IntRange(0, 5).Draw(t, "elements before") // where the vectors begin
	rule := Rule(rapid.IntRange(0, int(rules)-1).Draw(t, "rule"))
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	h := hyperOf(rule)
	h.Coupled = rapid.Bool().Draw(t, "coupled")
	h.DecayFirst = rapid.Bool().Draw(t, "decay first")
	h.Step = rapid.IntRange(1, 3).Draw(t, "step")
	if rapid.Bool().Draw(t, "no decay") {
		h.WeightDecay = 0
	}
	if rapid.Bool().Draw(t, "climb") {
		h.LR = -h.LR
	}
	special := []float32{0, float32(math.Copysign(0, -1)), 1e-40, -1e-40, 1e30, -1e30, float32(math.Inf(1)), float32(math.NaN())}
	vector := func(signed bool) []float32 {
		x := randomVector(r, n+skip+1)
		for i := range x {
			if r.IntN(5) == 0 {
				x[i] = special[r.IntN(len(special))]
			}
			if !signed {
				x[i] = float32(math.Abs(float64(x[i])))
			}
		}
		return x
	}
	p, g := vector(true), vector(true)
	var s [MaxStates][]float32
	for i, signed := range rule.Signed() {
		s[i] = vector(signed)
	}
	run := func(update func(Coef, []float32, []float32, [MaxStates][]float32)) (all [][]uint32) {
		p, states := slices.Clone(p), [MaxStates][]float32{}
		for i := range s {
			states[i] = slices.Clone(s[i])
		}
		update(h.Coef(), p[skip:skip+n], g[skip:skip+n], part(states, skip, n))
		for _, x := range append([][]float32{p}, states[:]...) {
			all = append(all, kerneltest.Bits(x))
		}
		return all
	}
	want := run(update)
	for tier, k := range Registry.All() {
		require.Equal(t, want, run(k.Update), "%v", tier)
	}
}

func TestTiersAgree(t *testing.T) { rapid.Check(t, tiersAgree) }

func FuzzTiersAgree(f *testing.F) { f.Fuzz(rapid.MakeFuzz(tiersAgree)) }
