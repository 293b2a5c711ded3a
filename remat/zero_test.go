package remat_test

import (
	"context"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat"
)

type (
	anyChain  = remat.Chain[int, int]
	anyRunner = remat.Runner[int, int]
	anyTape   = remat.Tape[int]
)

// TestZeroValues calls everything that is exported with nil and zero values.
func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t,
		(*anyChain)(nil), new(anyChain), (*anyRunner)(nil), new(anyRunner), (*anyTape)(nil), new(anyTape),
		remat.Plan{}, new(remat.Plan), (*remat.Plan)(nil), remat.Costs{}, new(remat.Costs), (*remat.Costs)(nil),
		remat.Planner{}, remat.Report{}, remat.Mismatch{}, remat.Levels{}, remat.MultilevelPlan{}, remat.LevelOp{}, remat.Op{},
		remat.Kind(0), remat.Kind(255), remat.LevelKind(255), remat.Tier(255), remat.Method(255), remat.ValueKind(255),
		remat.Class(255), remat.Decision(255), remat.Heuristic(255), remat.Policy(nil),
		new(remat.BudgetError), new(remat.RecomputeError), new(remat.RoomError), new(remat.ThrashError),
		remat.KeepAll, remat.RecomputeAll, remat.Every, remat.Chen, remat.Revolve, remat.Rotor, remat.Exact, remat.Fit, remat.HRevolve,
		remat.Repeat[int, int], remat.Iteration, remat.ParsePlan, remat.ParseMethod, remat.NewTape[int], remat.HashView,
		remat.SaveAll, remat.SaveNone, remat.SaveMatMuls, remat.SaveWeightMatMuls, remat.SaveOps, remat.SaveNames, remat.SaveAllBut,
		remat.SaveNamedBut, remat.SaveAndOffload, remat.MaskLen, remat.Int8Scales,
		remat.PackSigns[[]uint8, []float32], remat.PackMask[[]uint8, []bool], remat.UnpackMask[[]bool, []uint8], remat.ApplyMask[[]float32, []uint8],
		remat.PackInt8[[]uint8, []float32], remat.UnpackInt8[[]float32, []uint8], remat.PackMask[snug.View, snug.View], remat.PackSigns[snug.View, snug.View],
	)

	// With a context and functions, so that the next check is reached.
	ctx, loss := t.Context(), func(int) (int, error) { return 0, nil }
	for _, c := range []*anyChain{nil, {}, {Stages: make([]remat.Stage[int, int], 2)}} {
		_, _, err := c.Run(ctx, remat.Plan{}, 0, loss)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = c.Eval(ctx, 0)
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = c.NewRunner(remat.Plan{})
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = c.MeasureCosts(ctx, 0, loss, 1)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	for _, r := range []*anyRunner{nil, {}} {
		_, _, err := r.Run(ctx, 0, loss)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	for _, tape := range []*anyTape{nil, {}} {
		run := func(context.Context, []int) (int, error) { return 0, nil }
		over := func(context.Context, int, []int) error { return nil }
		view := func(v int) int { return v }
		zero := new(remat.Value[int])
		_, input := tape.Input(ctx, "", 0)
		_, do := tape.Do(ctx, remat.OpInfo{}, run, zero)
		_, overwrite := tape.Overwrite(ctx, remat.OpInfo{}, over, zero, nil)
		_, alias := tape.Alias("", zero, view)
		_, done, get := tape.Get(ctx, zero)
		_, take := tape.Take(ctx, zero)
		for _, err := range []error{input, do, overwrite, alias, get, take, tape.Free(zero), tape.Banish(ctx, zero), tape.Close()} {
			require.ErrorIs(t, err, snug.ErrConfig)
		}
		require.Nil(t, done)
	}
	tape, err := remat.NewTape(remat.TapeOptions[int]{Bytes: func(int) int64 { return 1 }})
	require.NoError(t, err)
	for _, y := range []*remat.Value[int]{nil, new(remat.Value[int])} {
		require.ErrorIs(t, tape.Free(y), snug.ErrConfig)
		_, _, err := tape.Get(ctx, y)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	require.ErrorIs(t, new(remat.Plan).UnmarshalJSON(nil), snug.ErrCorrupt)
	require.ErrorIs(t, (*remat.Costs)(nil).UnmarshalJSON([]byte(`{"input":0,"stages":[]}`)), snug.ErrConfig)
	require.ErrorIs(t, remat.Report{}.WriteCSV(nil, remat.Plan{}), snug.ErrConfig)
	require.NoError(t, remat.Report{}.WriteSVG(io.Discard, remat.Plan{}, ""))
	_, err = new(anyChain).MeasureCosts(ctx, 0, loss, math.MaxInt)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestDeepRecomputation has a chain of values that is too long to be computed again from
// its first one at once, which is an error, not the end of the stack.
func TestDeepRecomputation(t *testing.T) {
	const n = 1<<16 + 10
	tape, err := remat.NewTape(remat.TapeOptions[int]{Bytes: func(int) int64 { return 1 }, Budget: 3, Heuristic: remat.LRU})
	require.NoError(t, err)
	defer tape.Close()
	y, err := tape.Input(t.Context(), "x", 0)
	require.NoError(t, err)
	next := func(_ context.Context, in []int) (int, error) { return in[0] + 1, nil }
	values := make([]*remat.Value[int], n)
	for i := range values {
		y, err = tape.Do(t.Context(), remat.OpInfo{Name: "next", Bytes: 1, Cost: 1}, next, y)
		require.NoError(t, err)
		values[i] = y
	}
	_, _, err = tape.Get(t.Context(), values[n-5])
	require.ErrorIs(t, err, snug.ErrNoMemory)
	v, done, err := tape.Get(t.Context(), values[1000])
	require.NoError(t, err)
	require.Equal(t, 1001, v)
	done()
	v, _, err = tape.Get(t.Context(), values[20000]) // from there
	require.NoError(t, err)
	require.Equal(t, 20001, v)
}
