package remat_test

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Smallest has no more extra steps than it may, and with one byte less Plan needs more.
func TestSmallest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c remat.Costs
		size := rapid.Int64Range(1, 20)
		for range rapid.IntRange(1, 9).Draw(t, "stages") {
			out := size.Draw(t, "output")
			c.Stages = append(c.Stages, remat.Cost{Output: out, Saved: out + size.Draw(t, "saved"), ForwardTime: 1, BackwardTime: 2})
		}
		c.Input = size.Draw(t, "input")
		extra := rapid.IntRange(0, 12).Draw(t, "extra")
		p := remat.Planner{Method: remat.MethodRotor}
		plan, r, err := p.Smallest(c, extra)
		require.NoError(t, err)
		require.LessOrEqual(t, r.Extra, extra)
		again, err := plan.Simulate(c)
		require.NoError(t, err)
		require.Equal(t, r.Peak, again.Peak)
		if _, less, err := p.Plan(c, r.Peak-1); err == nil {
			require.Greater(t, less.Extra, extra)
		}
	})
	_, _, err := remat.Planner{}.Smallest(remat.Costs{}, 0)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, _, err = remat.Planner{}.Smallest(remat.Costs{}, -1)
	require.ErrorIs(t, err, snug.ErrConfig)
}
