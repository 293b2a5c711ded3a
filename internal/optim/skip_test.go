package optim

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/snug-ml/snug/internal/rounding"
)

// hyperOf returns constants for a rule.
func hyperOf(rule Rule) Hyper {
	return Hyper{Rule: rule, LR: 1e-2, Beta1: 0.9, Beta2: 0.99, Beta3: 0.999, Alpha: 5, Trust: 0.1, Eps: 1e-8, Size: 1e-2, Tau: -0.8, WeightDecay: 0.1, Share: 0.3, Step: 7, GradScale: 0.5}
}

// positiveStates returns the states of a rule for n elements.
func positiveStates(r *rand.Rand, rule Rule, n int) (s [MaxStates][]float32) {
	for i := range rule.Signed() {
		s[i] = randomVector(r, n)
		for k, v := range s[i] {
			s[i][k] = v * v
		}
	}
	return s
}

// TestSkip: elements that are skipped keep their bits, or in Muon's matrix are 0, and have
// states of 0, wherever they lie, and do not change the others.
func TestSkip(t *testing.T) {
	const n, limit = 70, 1e3
	r := rand.New(rand.NewPCG(5, 6))
	bad := map[int]float32{0: float32(math.NaN()), 1: limit * 2, 30: float32(math.Inf(-1)), n - 1: -limit * 2}
	for rule := range rules {
		h := hyperOf(rule)
		p, g, states := randomVector(r, n), randomVector(r, n), positiveStates(r, rule, n)
		wantP, want := slices.Clone(p), [MaxStates][]float32{}
		for i := range states {
			want[i] = slices.Clone(states[i])
		}
		c := h.Coef()
		c.Update(wantP, g, want)
		before := slices.Clone(p)
		for i, x := range bad {
			if g[i], wantP[i] = x, p[i]; rule == Muon {
				wantP[i] = 0 // it is not the parameter
			}
			for _, s := range want {
				if s != nil {
					s[i] = 0
				}
			}
		}
		h.Skip = math.Float32bits(limit)
		c = h.Coef()
		c.Update(p, g, states)
		require.Equal(t, wantP, p, "%v", rule)
		require.Equal(t, want, states, "%v", rule)

		// The norm of the update is that of the others.
		measure := h.Measure()
		gotP, gotU := measure.Squares(before, g, states)
		sumP, sumU := 0.0, 0.0
		for i := range before {
			x, u := measure.Squares(before[i:i+1], g[i:i+1], part(states, i, 1))
			sumP, sumU = sumP+x, sumU+u
			if _, skipped := bad[i]; skipped {
				require.Zero(t, u)
			}
		}
		require.Equal(t, sumP, gotP, "%v", rule)
		require.Equal(t, sumU, gotU, "%v", rule)
	}
}

// TestUpdateNorm: Squares has the squares of what a step subtracts, over the learning
// rate, without decoupled decay.
func TestUpdateNorm(t *testing.T) {
	const n = 300
	r := rand.New(rand.NewPCG(7, 8))
	for rule := range rules {
		if rule.Whole() || rule == ScheduleFree {
			continue
		}
		h := hyperOf(rule)
		p, g, states := make([]float32, n), randomVector(r, n), positiveStates(r, rule, n)
		measure := h.Measure()
		parameter, update := measure.Squares(p, g, states)
		require.Zero(t, parameter)
		c := h.Coef()
		c.Update(p, g, states)
		want := 0.0
		for _, x := range p {
			want += float64(x) * float64(x)
		}
		if rule == Adam || rule == AdEMAMix || rule == Lion { // after the update they decay
			want /= (1 - h.LR*h.WeightDecay) * (1 - h.LR*h.WeightDecay)
		}
		require.InEpsilon(t, want, update*h.LR*h.LR, 1e-5, "%v", rule)
	}
}

func TestLimitOfTheUpdate(t *testing.T) {
	h := Hyper{Rule: Lion, MaxUpdate: 0.5}
	require.Equal(t, 1.0, h.ratio(16, 4), "as large as may be")
	require.Equal(t, 0.5, h.ratio(16, 16), "twice as large")
	require.Equal(t, 1.0, h.ratio(16, 1))
	require.Equal(t, 1.0, h.ratio(0, 1), "a parameter of zeros")
	require.Equal(t, 1.0, h.ratio(1, 0))
	require.True(t, h.Norms())
	require.False(t, Hyper{Rule: Lion}.Norms())
	require.True(t, Hyper{Rule: LAMB}.Norms())
}

// TestRatioLeavesTheDecay: with a ratio an update has the factors of the smaller learning
// rate, and decoupled decay those of the learning rate itself.
func TestRatioLeavesTheDecay(t *testing.T) {
	for rule := range rules {
		if rule.Factored() || rule == Muon {
			continue // have a Size instead
		}
		for _, first := range []bool{false, true} {
			h := hyperOf(rule)
			h.LR, h.DecayFirst = float64(float32(h.LR)), first
			free, ratio := h.Coef(), 1.0/16
			switch h.MaxUpdate = 0.5; rule {
			case LAMB:
				ratio = 1.0 / 8
			case LARS:
				ratio = h.Trust * 4 / (32 + h.WeightDecay*4)
			}
			sized := h.Sized(16, 64*16, 10) // norms of 4 and 32
			h.LR = float64(float32(h.LR * ratio))
			want := h.Coef()
			want.pre, want.post = free.pre, free.post
			got := sized.Coef()
			require.Equal(t, want, got, "%v", rule)
			require.Less(t, math.Abs(float64(got.size)), math.Abs(float64(free.size)), "%v", rule)
			decoupled := rule == Adam || rule == AdEMAMix || rule == Lion
			require.Equal(t, decoupled, got.pre != 1 || got.post != 1, "%v", rule)
		}
	}
}

// TestRandomRounding: parameters of 16 bits are rounded by the draws of their elements.
func TestRandomRounding(t *testing.T) {
	const n = 300
	r := rand.New(rand.NewPCG(9, 10))
	draws := rounding.Draws{Stream: philox.Stream{Seed: 3, Tensor: 4}, First: 5}
	for rule := range rules {
		h := hyperOf(rule)
		p, g, states := make([]snug.BFloat16, n), randomVector(r, n), positiveStates(r, rule, n)
		half.Store(snug.ViewOf(p), 0, randomVector(r, n))
		x, want, c := make([]float32, n), make([]snug.BFloat16, n), h.Coef()
		half.Load(x, snug.ViewOf(p), 0)
		whole := [MaxStates][]float32{}
		for i := range states {
			whole[i] = slices.Clone(states[i])
		}
		c.Update(x, g, whole)
		draws.Store(snug.ViewOf(want), 0, x)
		c.Step32(Operands{P: snug.ViewOf(p), G: snug.ViewOf(g), Random: true, Draws: draws}, 0, n, states, 64, make([]float32, Scratch(64)))
		require.Equal(t, want, p, "%v", rule)

		exact := slices.Clone(x)
		c.Step32(Operands{P: snug.ViewOf(exact), G: snug.ViewOf(g), Random: true, Draws: draws}, 0, n, whole, 64, make([]float32, Scratch(64)))
		c.Update(x, g, states)
		require.Equal(t, x, exact, "%v of float32 is not rounded", rule)
	}
}
