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

// candidates returns the plans that Fit chooses from.
func candidates(c Costs) []Plan {
	var plans []Plan
	for i := 1; i <= len(c.Stages); i++ {
		plans = append(plans, must(Every(c, i)), must(Revolve(c, i)))
	}
	return append(plans, must(KeepAll(c)), must(RecomputeAll(c)), must(Chen(c)))
}

// fitIsBestAndMonotone compares Fit with all plans, under every budget at
// which its answer can change.
func fitIsBestAndMonotone(t *rapid.T) {
	c := drawCosts(t, 10)
	var reports []Report
	smallest := int64(math.MaxInt64)
	for _, p := range candidates(c) {
		r, err := p.Simulate(c)
		require.NoError(t, err)
		reports = append(reports, r)
		smallest = min(smallest, r.Peak)
	}
	_, err := Fit(c, smallest-1)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	var short *BudgetError
	require.True(t, errors.As(err, &short))
	require.Equal(t, BudgetError{smallest - 1, smallest}, *short)

	budget := smallest
	previous := Report{Time: math.Inf(1)}
	for budget < math.MaxInt64 {
		p, err := Fit(c, budget)
		require.NoError(t, err)
		got, err := p.Simulate(c)
		require.NoError(t, err)
		require.LessOrEqual(t, got.Peak, budget)
		require.LessOrEqual(t, got.Time, previous.Time)
		require.GreaterOrEqual(t, got.Peak, previous.Peak)
		next := int64(math.MaxInt64)
		for _, r := range reports {
			if r.Peak <= budget {
				chosen := []float64{got.Time, float64(got.Extra), float64(got.Peak)}
				other := []float64{r.Time, float64(r.Extra), float64(r.Peak)}
				require.LessOrEqual(t, slices.Compare(chosen, other), 0, "%+v is better than %s", r, p.Name)
			} else {
				next = min(next, r.Peak)
			}
		}
		if next != math.MaxInt64 {
			between, err := Fit(c, next-1)
			require.NoError(t, err)
			require.Equal(t, p, between)
		}
		previous, budget = got, next
	}
}

func TestFit(t *testing.T) { rapid.Check(t, fitIsBestAndMonotone) }

func FuzzFit(f *testing.F) { f.Fuzz(rapid.MakeFuzz(fitIsBestAndMonotone)) }

func TestFitChoices(t *testing.T) {
	c := uniform(16)
	for budget, want := range map[int64]string{
		math.MaxInt64: "keep-all",
		18:            "keep-all", // a_0, d and 16 saved sets
		17:            "every(2)",
		5:             "revolve(2)",
		4:             "recompute-all", // a_0, d, and the input and output of a step
	} {
		p, err := Fit(c, budget)
		require.NoError(t, err)
		require.Equal(t, want, p.Name, "budget %d", budget)
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
	require.Equal(t, "revolve(11)", p.Name)
	r, err := p.Simulate(c)
	require.NoError(t, err)
	require.Equal(t, 11, r.Extra)
}
