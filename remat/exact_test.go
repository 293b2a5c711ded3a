package remat

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
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
		for _, f := range s.forms {
			k = append(k, byte(f))
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
		for _, op := range possible(&at.state) {
			to := node{state: state{slices.Clone(at.state.forms), at.state.next}, held: at.held, time: at.time}
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
				if before == output {
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

// TestExactSearch ties the memory model to known figures, the operations
// to plans that no persistent planner makes, and Fit to what is possible.
func TestExactSearch(t *testing.T) {
	c := rotorChain()
	for _, tc := range []struct {
		budget int64
		time   float64
	}{
		{14, math.Inf(1)}, {15, 59}, {16, 55}, {18, 53}, {19, 52}, {23, 47}, {28, 45}, {29, 44}, {100, 44},
	} {
		time, p := shortest(c, tc.budget)
		require.Equal(t, tc.time, time, "budget %d", tc.budget)
		if math.IsInf(time, 1) {
			_, err := Fit(c, tc.budget)
			require.Error(t, err)
			continue
		}
		r, err := p.Simulate(c)
		require.NoError(t, err)
		require.Equal(t, time, r.Time)
		require.LessOrEqual(t, r.Peak, tc.budget)
		if p, err := Fit(c, tc.budget); err == nil {
			r, err := p.Simulate(c)
			require.NoError(t, err)
			require.GreaterOrEqual(t, r.Time, time)
		}
	}
	r, err := must(KeepAll(c)).Simulate(c)
	require.NoError(t, err)
	require.EqualValues(t, 29, r.Peak)
	require.Equal(t, 44.0, r.Time)
}
