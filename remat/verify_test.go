package remat

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// drifting is a stage over numbers whose output, or saved set, is another one when
// it is computed again.
type drifting struct {
	output, saved bool
	calls         int
}

func (d *drifting) drift(on bool) float64 {
	if on {
		return float64(d.calls)
	}
	return 0
}

func (d *drifting) Forward(_ context.Context, x float64) (float64, error) {
	d.calls++
	return x + 1 + d.drift(d.output), nil
}

func (d *drifting) ForwardSave(ctx context.Context, x float64) (y, s float64, err error) {
	y, err = d.Forward(ctx, x)
	return y, x + d.drift(d.saved), err
}

func (d *drifting) Backward(_ context.Context, _, _, dy float64) (float64, error) { return dy, nil }

func driftingChain(stages ...Stage[float64, float64]) *Chain[float64, float64] {
	eight := func(float64) int64 { return 8 }
	hash := func(x float64) (uint64, error) { return math.Float64bits(x), nil }
	return &Chain[float64, float64]{Stages: stages, Bytes: eight, SavedBytes: eight, Hash: hash, HashSaved: hash}
}

func one(float64) (float64, error) { return 1, nil }

func TestVerify(t *testing.T) {
	steady := &drifting{}
	plan := Plan{Name: "again", Stages: 3, Ops: parsed(t, "F0 F1 S2 B2 -F1 F1 -F1 S1 -S1 S1 B1 S0 B0")}
	c := driftingChain(steady, steady, steady)
	for range 2 {
		_, _, err := c.Run(t.Context(), plan, 1, one)
		require.NoError(t, err)
	}
	for _, test := range []struct {
		stage *drifting
		saved bool
	}{{&drifting{output: true}, false}, {&drifting{saved: true}, true}} {
		released := 0
		c := driftingChain(steady, test.stage, steady)
		c.Release = func(float64) { released++ }
		_, _, err := c.Run(t.Context(), plan, 1, one)
		var differs *RecomputeError
		require.ErrorAs(t, err, &differs)
		require.ErrorIs(t, err, snug.ErrCorrupt)
		require.Equal(t, []any{1, test.saved}, []any{differs.Stage, differs.Saved})
		require.NotEqual(t, differs.First, differs.Again)
		require.ErrorContains(t, err, "of stage 1 has the hash")
		require.NotZero(t, released)

		c.Hash, c.HashSaved = nil, nil
		_, _, err = c.Run(t.Context(), plan, 1, one)
		require.NoError(t, err, "nothing is checked unless asked for")
	}
	broken := errors.New("broken")
	c.HashSaved = func(float64) (uint64, error) { return 0, broken }
	_, _, err := c.Run(t.Context(), plan, 1, one)
	require.ErrorIs(t, err, broken)
	c.Hash = c.HashSaved
	_, _, err = c.Run(t.Context(), plan, 1, one)
	require.ErrorIs(t, err, broken)
}

//check:in emulated
func TestHashView(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, n := range []int{0, 1, 1000, 40_000} {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(i)
			}
			want, err := HashView(snug.ViewOf(x))
			require.NoError(t, err)
			got, err := HashView(kerneltest.Put(t, p, x).View)
			require.NoError(t, err)
			require.Equal(t, want, got)
			if n > 0 {
				x[n-1]++
				other, err := HashView(kerneltest.Put(t, p, x).View)
				require.NoError(t, err)
				require.NotEqual(t, want, other)
			}
		}
	})
}

// TestRepeat has a loop of two stages, three rounds, whose stages see the round.
func TestRepeat(t *testing.T) {
	var rounds []int
	var note Stage[float64, float64] = noting{&rounds}
	stages, err := Repeat(3, note, &drifting{})
	require.NoError(t, err)
	require.Len(t, stages, 6)
	c := driftingChain(stages...)
	costs, err := Costs{Input: 8, Stages: []Cost{{Output: 8, Saved: 8}, {Output: 8, Saved: 8}}}.Repeat(3)
	require.NoError(t, err)
	plan := must(Revolve(costs, 2))
	_, rep, err := c.Run(t.Context(), plan, 1, one)
	require.NoError(t, err)
	simulated, err := plan.Simulate(costs)
	require.NoError(t, err)
	require.Equal(t, simulated.Peak, rep.Peak)
	require.Equal(t, []int{0, 1, 2}, rounds[:3], "forward")
	require.Equal(t, 0, rounds[len(rounds)-1], "backward ends where it began")
	require.Zero(t, Iteration(t.Context()))

	for _, n := range []int{math.MinInt, -1, 0, maxStages/2 + 1, math.MaxInt/2 + 1, math.MaxInt} {
		loop, err := Repeat(n, note, note)
		require.ErrorIs(t, err, snug.ErrConfig, n)
		require.Nil(t, loop)
		longer, err := Costs{Input: 8, Stages: costs.Stages[:2]}.Repeat(n)
		require.ErrorIs(t, err, snug.ErrConfig, n)
		require.Zero(t, longer)
	}
	_, err = Repeat(maxStages+1, note)
	require.ErrorContains(t, err, "1048577 rounds of 1 stages, want 1048576 stages at most")
	longest, err := Repeat(maxStages, note)
	require.NoError(t, err)
	require.Len(t, longest, maxStages)
	_, err = Repeat[float64, float64](math.MaxInt)
	require.ErrorIs(t, err, snug.ErrConfig, "no stages")
	_, err = Repeat[float64, float64](1, note, nil)
	require.ErrorIs(t, err, snug.ErrConfig)

	tiered := Costs{Input: 8, Stages: costs.Stages[:1], Host: Rates{1, 2}, Disk: Rates{3, 4}}
	twice, err := tiered.Repeat(2)
	require.NoError(t, err)
	require.Equal(t, Costs{Input: 8, Stages: costs.Stages[:2], Host: Rates{1, 2}, Disk: Rates{3, 4}}, twice)
	_, err = Costs{Input: 1 << 60, Stages: []Cost{{Output: 1 << 60, Saved: 1 << 60}}}.Repeat(2)
	require.ErrorIs(t, err, snug.ErrConfig, "sizes")
	_, err = Costs{}.Repeat(2)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = Costs{Input: 8, Stages: []Cost{{Output: 4, Saved: 4}}}.Repeat(2)
	require.ErrorIs(t, err, snug.ErrShape)
}

// noting notes the rounds in which it is called.
type noting struct{ rounds *[]int }

func (n noting) note(ctx context.Context) { *n.rounds = append(*n.rounds, Iteration(ctx)) }

func (n noting) Forward(ctx context.Context, x float64) (float64, error) {
	n.note(ctx)
	return x, nil
}

func (n noting) ForwardSave(ctx context.Context, x float64) (y, s float64, err error) {
	n.note(ctx)
	return x, x, nil
}

func (n noting) Backward(ctx context.Context, _, _, dy float64) (float64, error) {
	n.note(ctx)
	return dy, nil
}
