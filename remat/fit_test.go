package remat

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// candidates returns plans that Fit chooses from, and those of Rotor for budgets.
func candidates(c Costs, budgets ...int64) []Plan {
	var plans []Plan
	for i := 1; i <= len(c.Stages); i++ {
		plans = append(plans, must(Every(c, i)), must(Revolve(c, i)))
	}
	for _, budget := range budgets {
		if p, err := Rotor(c, budget); err == nil {
			plans = append(plans, p)
		}
	}
	return append(plans, must(KeepAll(c)), must(RecomputeAll(c)), must(Chen(c)))
}

// fitIsBestAndMonotone compares Fit with the other planners, under all budgets at
// which one of the simple ones begins to fit and others between.
func fitIsBestAndMonotone(t *rapid.T) {
	c := drawCosts(t, 7)
	budgets := []int64{rapid.Int64Range(0, 400).Draw(t, "budget")}
	for _, p := range candidates(c) {
		r, err := p.Simulate(c)
		require.NoError(t, err)
		budgets = append(budgets, r.Peak-1, r.Peak)
	}
	slices.Sort(budgets)
	previous := Report{Time: math.Inf(1)}
	for _, budget := range slices.Compact(budgets) {
		p, err := Fit(c, budget)
		var short *BudgetError
		if errors.As(err, &short) {
			require.ErrorIs(t, err, snug.ErrNoMemory)
			require.Equal(t, budget, short.Budget)
			require.Greater(t, short.Minimum, budget)
			_, err := Fit(c, short.Minimum)
			require.NoError(t, err)
			_, err = Fit(c, short.Minimum-1)
			require.ErrorIs(t, err, snug.ErrNoMemory)
			continue
		}
		require.NoError(t, err)
		got, err := p.Simulate(c)
		require.NoError(t, err)
		require.LessOrEqual(t, got.Peak, budget)
		const rounding = 1e-9
		require.LessOrEqual(t, got.Time, previous.Time+rounding)
		require.GreaterOrEqual(t, got.Peak, previous.Peak)
		for _, other := range candidates(c, budget) {
			if r, err := other.Simulate(c); err == nil && r.Peak <= budget {
				require.LessOrEqual(t, got.Time, r.Time+rounding, "%s is better than %s", other.Name, p.Name)
			}
		}
		previous = got
	}
}

func TestFit(t *testing.T) { rapid.Check(t, fitIsBestAndMonotone) }

func FuzzFit(f *testing.F) { f.Fuzz(rapid.MakeFuzz(fitIsBestAndMonotone)) }

func TestFitChoices(t *testing.T) {
	c := uniform(16)
	for _, tc := range []struct {
		budget              int64
		fit, exact, revolve int // extra forward steps; revolve of the simple plans
	}{
		{math.MaxInt64, 0, 0, 0},
		{18, 0, 0, 0}, // a_0, d and 16 saved sets
		{17, 2, 1, 8},
		{7, 17, 12, 27},
		{6, 24, 18, 33},
		{5, 40, 35, 45},
		{4, 119, 118, 120}, // a_0, d, and the input and output of a step
	} {
		fit, err := must(Fit(c, tc.budget)).Simulate(c)
		require.NoError(t, err)
		exact, err := must(Exact(c, tc.budget)).Simulate(c)
		require.NoError(t, err)
		simple, err := must(quickest(c, tc.budget, everyFamily(16))).Simulate(c)
		require.NoError(t, err)
		require.Equal(t, []int{tc.fit, tc.exact, tc.revolve}, []int{fit.Extra, exact.Extra, simple.Extra}, "budget %d", tc.budget)
	}
	_, err := Fit(c, 3)
	require.EqualError(t, err, "remat: no plan fits in 3 bytes, the smallest budget that works is 4 bytes: snug: out of memory")
	_, err = Fit(c, math.MinInt64)
	require.ErrorIs(t, err, snug.ErrNoMemory)

	// Without times the extra forward steps decide.
	for i := range c.Stages {
		c.Stages[i].ForwardTime, c.Stages[i].BackwardTime = 0, 0
	}
	p, err := Fit(c, 1000)
	require.NoError(t, err)
	require.Equal(t, "keep-all", p.Name)
}

// TestFitLargeSavedSets: where saved sets are much larger than outputs, to
// keep all inputs and one saved set is the plan of choice.
func TestFitLargeSavedSets(t *testing.T) {
	c := uniform(12)
	for i := range c.Stages {
		c.Stages[i].Saved = 17
	}
	p, err := Fit(c, 12+17+2)
	require.NoError(t, err)
	require.Equal(t, "chen(1)", p.Name)
	r, err := p.Simulate(c)
	require.NoError(t, err)
	require.Equal(t, 11, r.Extra)
}
