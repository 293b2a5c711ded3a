package remat

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// rotorChain is a chain of 6 stages whose shortest times under every budget
// are known from exhaustive search in the memory model of Rotor (Beaumont,
// Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for
// heterogeneous chains", 2019, arXiv:1911.13214).
func rotorChain() Costs {
	c := Costs{Input: 2, Stages: make([]Cost, 6)}
	for i := range c.Stages {
		c.Stages[i] = Cost{
			Output:        []int64{3, 1, 4, 1, 2, 1}[i],
			Saved:         []int64{6, 3, 8, 2, 5, 1}[i],
			ForwardExtra:  []int64{0, 1, 0, 2, 0, 0}[i],
			BackwardExtra: []int64{1, 0, 2, 0, 1, 0}[i],
			ForwardTime:   []float64{3, 2, 5, 1, 4, 0}[i],
			BackwardTime:  []float64{6, 4, 9, 2, 8, 0}[i],
		}
	}
	return c
}

// shortest returns the least time of all valid plans under a budget, the plan,
// and +Inf if there is none: Dijkstra's algorithm over what can be held.
func shortest(c Costs, budget int64) (float64, Plan) {
	type node struct {
		state state
		held  int64
		time  float64
		ops   []Op
		done  bool
	}
	key := func(s state) string {
		k := []byte{byte(s.next + 1)}
		for _, f := range s.results {
			k = append(k, byte(f.form))
		}
		return string(k)
	}
	n := len(c.Stages)
	start := &node{state: *newState(n), held: c.Input + c.value(n)}
	nodes := map[string]*node{key(start.state): start}
	for {
		var at *node
		for _, v := range nodes {
			if !v.done && (at == nil || v.time < at.time) {
				at = v
			}
		}
		if at == nil {
			return math.Inf(1), Plan{}
		}
		if at.done = true; at.state.next < 0 {
			return at.time, Plan{Stages: n, Ops: at.ops}
		}
		for _, op := range possible(&at.state, DropSaved) {
			to := node{state: state{slices.Clone(at.state.results), at.state.next}, held: at.held, time: at.time}
			before, _ := to.state.apply(op)
			s := c.Stages[op.Stage]
			extra, freed := int64(0), int64(0)
			switch op.Kind {
			case ForwardDiscard:
				to.held += s.Output
				extra = s.ForwardExtra
				to.time += s.ForwardTime
			case ForwardSave:
				to.held += s.Saved
				if before.form == output {
					to.held -= s.Output
				}
				extra = s.ForwardExtra
				to.time += s.ForwardTime
			case Backward:
				to.held += c.value(op.Stage) - s.Output
				extra, freed = s.BackwardExtra, s.Saved
				to.time += s.BackwardTime
			case DropOutput:
				to.held -= s.Output
			case DropSaved:
				to.held -= s.Saved
			}
			if to.held+extra > budget {
				continue
			}
			to.held -= freed
			to.ops = append(slices.Clip(at.ops), op)
			if old := nodes[key(to.state)]; old == nil || to.time < old.time {
				nodes[key(to.state)] = &to
			}
		}
	}
}

// TestGolden ties the memory model and the optimal planners to known figures, and
// the operations to plans that no persistent planner makes.
func TestGolden(t *testing.T) {
	c := rotorChain()
	for _, tc := range []struct {
		budget            int64
		persistent, exact float64
	}{
		{15, 59, 59}, {16, 55, 55}, {18, 54, 53}, {19, 54, 52}, {23, 49, 47}, {28, 45, 45}, {29, 44, 44}, {100, 44, 44},
	} {
		time, _ := shortest(c, tc.budget)
		require.Equal(t, tc.exact, time, "budget %d", tc.budget)
		for method, want := range map[Method]float64{MethodRotor: tc.persistent, MethodExact: tc.exact, MethodFit: tc.exact} {
			p, r, err := Planner{Method: method}.Plan(c, tc.budget)
			require.NoError(t, err)
			require.Equal(t, want, r.Time, "%v, budget %d: %v", method, tc.budget, p)
			require.LessOrEqual(t, r.Peak, tc.budget)
			require.LessOrEqual(t, r.Bound, tc.exact)
			if method != MethodRotor {
				require.Zero(t, r.Gap())
			}
		}
	}
	for _, f := range []func(Costs, int64) (Plan, error){Rotor, Exact, Fit} {
		_, err := f(c, 14)
		require.Equal(t, &BudgetError{14, 15}, err)
	}
	r, err := must(KeepAll(c)).Simulate(c)
	require.NoError(t, err)
	require.EqualValues(t, 29, r.Peak)
	require.Equal(t, 44.0, r.Time)
}

// drawSmall draws a chain of up to most stages whose times have exact sums, and a
// budget around those that matter.
func drawSmall(t *rapid.T, most int) (Costs, int64) {
	c := drawCosts(t, most)
	for i := range c.Stages {
		c.Stages[i].ForwardTime = math.Round(c.Stages[i].ForwardTime*4) / 4
		c.Stages[i].BackwardTime = math.Round(c.Stages[i].BackwardTime*4) / 4
	}
	keep, err := must(KeepAll(c)).Simulate(c)
	require.NoError(t, err)
	return c, rapid.Int64Range(c.Input, keep.Peak+1).Draw(t, "budget")
}

// exactIsShortest compares Exact with a search through all operations.
func exactIsShortest(t *rapid.T) {
	c, budget := drawSmall(t, 4)
	want, _ := shortest(c, budget)
	p, err := Exact(c, budget)
	var short *BudgetError
	if errors.As(err, &short) {
		require.True(t, math.IsInf(want, 1), "%v", err)
		want, _ = shortest(c, short.Minimum-1)
		require.True(t, math.IsInf(want, 1), "%v", err)
		want, _ = shortest(c, short.Minimum)
		p, err = Exact(c, short.Minimum)
		budget = short.Minimum
	}
	require.NoError(t, err)
	r, err := p.Simulate(c)
	require.NoError(t, err)
	require.Equal(t, want, r.Time)
	require.LessOrEqual(t, r.Peak, budget)

	// Fit's plan has, of the fastest ones, the smallest peak.
	fitted := must(Fit(c, budget))
	f, err := fitted.Simulate(c)
	require.NoError(t, err)
	require.Equal(t, want, f.Time)
	require.LessOrEqual(t, f.Peak, r.Peak)
}

func TestExactIsShortest(t *testing.T) { rapid.Check(t, exactIsShortest) }

func FuzzExact(f *testing.F) { f.Fuzz(rapid.MakeFuzz(exactIsShortest)) }

// TestExactEnds: a search that ends early has a bound and the best plan known.
func TestExactEnds(t *testing.T) {
	c := randomChain(1, 14)
	r, err := newRotor(c)
	require.NoError(t, err)
	budget := r.smallest() + r.smallest()/8
	_, complete, err := Planner{Method: MethodExact}.Plan(c, budget)
	require.NoError(t, err)
	require.Zero(t, complete.Gap())
	_, early, err := Planner{Method: MethodExact, States: 100}.Plan(c, budget)
	require.NoError(t, err)
	require.Positive(t, early.Gap())
	require.Less(t, early.Bound, complete.Time)
	require.LessOrEqual(t, complete.Time, early.Time)
	_, rotor, err := Planner{Method: MethodRotor}.Plan(c, budget)
	require.NoError(t, err)
	require.LessOrEqual(t, early.Time, rotor.Time)

	_, err = Exact(uniform(exactStages+1), 100)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.EqualError(t, err, "remat: plan exact for 25 stages: want 24 at most: snug: invalid configuration")
	p := must(Exact(uniform(exactStages), 100))
	require.NoError(t, p.Validate())
}

// randomChain returns a chain of n stages of a transformer's sizes that have
// nothing in common.
func randomChain(seed uint64, n int) Costs {
	const unit = 1 << 24
	r := rand.New(rand.NewPCG(seed, 0))
	c := Costs{Input: 1 + r.Int64N(unit), Stages: make([]Cost, n)}
	for i := range c.Stages {
		output := 1 + r.Int64N(unit)
		c.Stages[i] = Cost{
			Output: output, Saved: output + r.Int64N(3*unit),
			ForwardExtra: r.Int64N(unit / 4), BackwardExtra: r.Int64N(unit),
			ForwardTime: float64(1 + r.IntN(1000)), BackwardTime: float64(1 + r.IntN(2000)),
		}
	}
	return c
}

// BenchmarkExact plans 16 stages under budgets in parts of 256 between the smallest
// one and that of KeepAll.
func BenchmarkExact(b *testing.B) {
	c := randomChain(1, 16)
	r, err := newRotor(c)
	require.NoError(b, err)
	keep, err := must(KeepAll(c)).Simulate(c)
	require.NoError(b, err)
	for _, part := range []int64{0, 32, 64, 128, 192} {
		b.Run(fmt.Sprint(part), func(b *testing.B) {
			for b.Loop() {
				if _, err := Exact(c, r.smallest()+(keep.Peak-r.smallest())/256*part); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
