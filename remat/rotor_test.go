package remat

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// persistent returns the least forward time of the stages s to t by the recurrence
// of Rotor as it is written down.
func persistent(c Costs, s, t int, m int64) float64 {
	x, stage := c.value, c.Stages[s]
	best := math.Inf(1)
	if m >= max(x(t+1)+stage.Saved+stage.ForwardExtra, x(s)+stage.Saved+stage.BackwardExtra) {
		if s == t {
			return stage.ForwardTime
		}
		best = stage.ForwardTime + persistent(c, s+1, t, m-stage.Saved)
	}
	forward := 0.0
	for j := s + 1; j <= t; j++ {
		peak := x(t+1) + x(j) + c.Stages[j-1].ForwardExtra
		if j-1 > s {
			peak += x(j - 1)
		}
		if m < peak {
			break
		}
		forward += c.Stages[j-1].ForwardTime
		best = min(best, forward+persistent(c, j, t, m-x(j))+persistent(c, s, j-1, m))
	}
	return best
}

// rotorIsPersistent compares Rotor, with all amounts and with few of them, with the
// recurrence.
func rotorIsPersistent(t *rapid.T) {
	c, budget := drawSmall(t, 7)
	n := len(c.Stages)
	backward := 0.0
	for _, s := range c.Stages {
		backward += s.BackwardTime
	}
	time := func(budget int64) float64 { return persistent(c, 0, n-1, budget-c.Input) + backward }
	r, err := newRotor(c)
	require.NoError(t, err)
	require.True(t, math.IsInf(time(r.smallest()-1), 1))
	_, err = Rotor(c, r.smallest()-1)
	require.Equal(t, &BudgetError{r.smallest() - 1, r.smallest()}, err)
	for _, budget := range []int64{max(budget, r.smallest()), r.smallest()} {
		p, err := Rotor(c, budget)
		require.NoError(t, err)
		report, err := p.Simulate(c)
		require.NoError(t, err)
		require.LessOrEqual(t, report.Peak, budget)
		require.Equal(t, time(budget), report.Time)

		limit := rapid.IntRange(1, 12).Draw(t, "amounts")
		r.solve(limit, budget)
		report, err = r.plan(budget).Simulate(c)
		require.NoError(t, err)
		require.LessOrEqual(t, report.Peak, budget)
		require.GreaterOrEqual(t, report.Time, time(budget))
		require.LessOrEqual(t, report.Time, time(budget-int64(n-1)*(budget/int64(limit))))
	}
}

func TestRotorIsPersistent(t *testing.T) { rapid.Check(t, rotorIsPersistent) }

func FuzzRotor(f *testing.F) { f.Fuzz(rapid.MakeFuzz(rotorIsPersistent)) }

// methodsAreOrdered: Exact is as fast as all, and Rotor as other plans that keep what
// they store, where those fit. Those of Every do not: they drop the input of what
// they have saved.
func methodsAreOrdered(t *rapid.T) {
	c, budget := drawSmall(t, 6)
	times := map[Method]float64{}
	for m := range methods {
		if m == MethodHRevolve {
			continue
		}
		_, r, err := Planner{Method: m}.Plan(c, budget)
		if err != nil {
			require.ErrorIs(t, err, snug.ErrNoMemory)
			times[m] = math.Inf(1)
			continue
		}
		require.LessOrEqual(t, r.Peak, budget, "%v", m)
		times[m] = r.Time
	}
	for m, time := range times {
		require.LessOrEqual(t, times[MethodExact], time, "%v", m)
		if m >= MethodRotor && m != MethodEvery {
			require.LessOrEqual(t, times[MethodRotor], time, "%v", m)
		}
	}
}

func TestMethodsAreOrdered(t *testing.T) { rapid.Check(t, methodsAreOrdered) }

// TestRotorUniform: where saved sets are large and outputs equal, there is nothing
// better than Revolve.
func TestRotorUniform(t *testing.T) {
	for _, tc := range []struct{ n, slots, extra int }{
		{5, 2, 6}, {10, 3, 15}, {16, 2, 45}, {32, 4, 75}, {64, 5, 172}, {100, 10, 222}, {100, 1, 4950},
	} {
		c := uniform(tc.n)
		for i := range c.Stages {
			c.Stages[i].Saved = 1000
		}
		revolve, err := must(Revolve(c, tc.slots)).Simulate(c)
		require.NoError(t, err)
		require.Equal(t, tc.extra, revolve.Extra)
		rotor, err := must(Rotor(c, revolve.Peak)).Simulate(c)
		require.NoError(t, err)
		require.Equal(t, tc.extra, rotor.Extra, "%d slots", tc.slots)
		require.Equal(t, revolve.Peak, rotor.Peak)
	}
}

// TestRotorLong plans a chain whose amounts are rounded.
func TestRotorLong(t *testing.T) {
	kerneltest.Slow(t) // many long plans
	c := randomChain(2, 200)
	keep, err := must(KeepAll(c)).Simulate(c)
	require.NoError(t, err)
	last := math.Inf(1)
	for _, part := range []int64{20, 8, 3, 1} {
		budget := keep.Peak / part
		p, err := Rotor(c, budget)
		require.NoError(t, err)
		r, err := p.Simulate(c)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Peak, budget)
		require.Less(t, r.Time, last)
		last = r.Time
		if part == 8 {
			simple, err := must(quickest(c, budget, everyFamily(200))).Simulate(c)
			require.NoError(t, err)
			require.LessOrEqual(t, r.Time, simple.Time)
		}
	}
	require.Equal(t, keep.Time, last)

	_, err = Rotor(uniform(rotorStages+1), 1<<40)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.EqualError(t, err, "remat: plan rotor for 501 stages: want 500 at most: snug: invalid configuration")
}

// BenchmarkRotor plans 200 stages with all their sizes different, under parts of
// what KeepAll takes.
func BenchmarkRotor(b *testing.B) {
	c := randomChain(1, 200)
	keep, err := must(KeepAll(c)).Simulate(c)
	require.NoError(b, err)
	for _, part := range []int64{20, 6, 2} {
		b.Run(fmt.Sprint(part), func(b *testing.B) {
			for b.Loop() {
				if _, err := Rotor(c, keep.Peak/part); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
