package remat

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawTiers draws what a planner may use.
func drawTiers(t *rapid.T) Tiers {
	size := rapid.SampledFrom([]int64{0, 10, 50, 200})
	return Tiers{Host: size.Draw(t, "host"), Disk: size.Draw(t, "disk"), Lossy: rapid.Bool().Draw(t, "lossy")}
}

// tiersFit checks the plans of a planner with tiers: they fit, run as simulated, and
// are as fast as those without, and more of anything never makes them slower.
func tiersFit(t *rapid.T) {
	c := drawCosts(t, 6)
	keep, err := must(KeepAll(c)).Simulate(c)
	require.NoError(t, err)
	budget := rapid.Int64Range(c.Input, keep.Peak+1).Draw(t, "budget")
	tiers := drawTiers(t)
	p, r, err := Planner{Tiers: tiers}.Plan(c, budget)
	if err != nil {
		var short *BudgetError
		require.True(t, errors.As(err, &short), "%v", err)
		budget = short.Minimum
		p, r, err = Planner{Tiers: tiers}.Plan(c, budget)
	}
	require.NoError(t, err)
	require.NoError(t, p.Validate())
	require.LessOrEqual(t, r.Peak, budget)
	require.LessOrEqual(t, r.Host, tiers.Host)
	require.LessOrEqual(t, r.Disk, tiers.Disk)
	require.True(t, tiers.Lossy || r.Packed == 0)
	require.LessOrEqual(t, r.Bound, r.Time)

	const rounding = 1e-9
	if fit, err := Fit(c, budget); err == nil {
		without, err := fit.Simulate(c)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Time, without.Time+rounding)
	}
	for budget, tiers := range map[int64]Tiers{
		budget + 7: tiers,
		budget:     {tiers.Host + 20, tiers.Disk, tiers.Lossy},
		budget + 1: {tiers.Host, tiers.Disk + 20, true},
	} {
		_, more, err := Planner{Tiers: tiers}.Plan(c, budget)
		require.NoError(t, err)
		require.LessOrEqual(t, more.Time, r.Time+rounding)
	}

	h := newHeap()
	_, run, err := fakeChain(h, c).Run(t.Context(), p, fakeInput(h, c), fakeLoss(h, c, nil))
	require.NoError(t, err)
	require.Empty(t, h.Problems)
	require.Equal(t, []int64{r.Peak, r.Host, r.Disk, int64(r.Packed)}, []int64{run.Peak, run.Host, run.Disk, int64(run.Packed)})
	require.Equal(t, r.Timeline, run.Timeline)
}

func TestTiersFit(t *testing.T) { rapid.Check(t, tiersFit) }

func FuzzTiers(f *testing.F) { f.Fuzz(rapid.MakeFuzz(tiersFit)) }

// boundHolds: no valid plan is faster than the bound for what it takes.
func boundHolds(t *rapid.T) {
	c := drawCosts(t, 5)
	if unit := rapid.IntRange(0, 3).Draw(t, "unit"); unit > 0 { // times that have a divisor
		for i := range c.Stages {
			s := &c.Stages[i]
			s.ForwardTime = math.Round(s.ForwardTime/float64(unit)) * float64(unit)
		}
	}
	p := drawPlan(t, c)
	r, err := p.Simulate(c)
	require.NoError(t, err)
	f := newForwards(c)
	if !p.copies() {
		require.LessOrEqual(t, f.minWork(c, r.Peak), f.of(p), "%v", p)
	}
	bound := tiersBound(c, r.Peak, Tiers{Host: r.Host, Disk: r.Disk, Lossy: r.Packed > 0}, &f)
	require.LessOrEqual(t, bound, r.Time*(1+1e-9)+1e-9, "%v", p)
}

func TestBoundHolds(t *testing.T) { rapid.Check(t, boundHolds) }

// transformerCosts are those of n equal blocks that save 17 times their output.
func transformerCosts(n int) Costs {
	c := Costs{Input: 16, Host: Rates{100, 100}, Disk: Rates{20, 30}, Stages: make([]Cost, n)}
	for i := range c.Stages {
		c.Stages[i] = Cost{Output: 16, Saved: 272, ForwardExtra: 16, BackwardExtra: 64, ForwardTime: 1, BackwardTime: 2, Packed: 68, PackTime: 0.05, UnpackTime: 0.05}
	}
	return c
}

// TestTiersHelp: what overlaps costs nothing, and less memory is enough.
func TestTiersHelp(t *testing.T) {
	kerneltest.Slow(t) // many long plans
	c := transformerCosts(24)
	keep, err := must(KeepAll(c)).Simulate(c)
	require.NoError(t, err)
	overhead := func(part int64, tiers Tiers) float64 {
		_, r, err := Planner{Tiers: tiers}.Plan(c, keep.Peak*part/100)
		require.NoError(t, err)
		return r.Time/keep.Time - 1
	}
	all := Tiers{Host: keep.Peak, Disk: keep.Peak, Lossy: true}
	for _, tc := range []struct {
		part                      int64
		without, host, disk, each float64 // largest overhead
	}{
		{75, 0.1, 0.001, 0.1, 0.001},
		{50, 0.19, 0.12, 0.19, 0.03},
		{25, 0.27, 0.21, 0.27, 0.20},
	} {
		require.LessOrEqual(t, overhead(tc.part, Tiers{}), tc.without, "%d%%", tc.part)
		require.LessOrEqual(t, overhead(tc.part, Tiers{Host: all.Host}), tc.host, "%d%% and host", tc.part)
		require.LessOrEqual(t, overhead(tc.part, Tiers{Disk: all.Disk}), tc.disk, "%d%% and disk", tc.part)
		require.LessOrEqual(t, overhead(tc.part, all), tc.each, "%d%% and all", tc.part)
	}
}

func TestTiersErrors(t *testing.T) {
	c := uniform(4)
	for _, p := range []Planner{
		{Tiers: Tiers{Host: 1}},
		{Tiers: Tiers{Disk: 1}},
		{Tiers: Tiers{Host: -1}},
		{Tiers: Tiers{Lossy: true}, Method: MethodRotor},
		{Method: MethodHRevolve},
		{Method: MethodHRevolve, Tiers: Tiers{Lossy: true}},
	} {
		_, _, err := p.Plan(c, 100)
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", p)
	}
	_, _, err := Planner{Tiers: Tiers{Lossy: true}}.Plan(c, 1)
	require.ErrorIs(t, err, snug.ErrNoMemory)
}

func TestPlannerMethods(t *testing.T) {
	c := transformerCosts(12)
	keep, err := must(KeepAll(c)).Simulate(c)
	require.NoError(t, err)
	var times []float64
	for m := range methods {
		if m == MethodHRevolve {
			times = append(times, math.Inf(1))
			continue
		}
		named, err := ParseMethod(m.String())
		require.NoError(t, err)
		require.Equal(t, m, named)
		_, r, err := Planner{Method: m}.Plan(c, keep.Peak*6/10)
		if m == MethodKeepAll || m == MethodRevolve && err != nil {
			require.ErrorIs(t, err, snug.ErrNoMemory)
			times = append(times, math.Inf(1))
			continue
		}
		require.NoError(t, err, m)
		require.LessOrEqual(t, r.Peak, keep.Peak*6/10)
		require.LessOrEqual(t, r.Bound, r.Time)
		times = append(times, r.Time)
	}
	require.Equal(t, times[MethodExact], times[MethodFit])
	require.LessOrEqual(t, times[MethodExact], times[MethodRotor])
	require.LessOrEqual(t, times[MethodRotor], slices.Min(times[MethodRevolve:]))
	_, err = ParseMethod("best")
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, "?", methods.String())
	for _, p := range []Planner{{Method: methods}, {States: -1}} {
		_, _, err := p.Plan(c, 100)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}
