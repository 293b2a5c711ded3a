package tape_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat/tape"
)

type anyTape = tape.Tape[int]

// TestZeroValues calls everything that is exported with nil and zero values.
func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t,
		(*anyTape)(nil), new(anyTape), tape.Class(255), tape.Decision(255), tape.Heuristic(255), tape.Policy(nil),
		new(tape.BudgetError), new(tape.ThrashError), tape.New[int],
		tape.SaveAll, tape.SaveNone, tape.SaveMatMuls, tape.SaveWeightMatMuls, tape.SaveOps, tape.SaveNames, tape.SaveAllBut,
		tape.SaveNamedBut, tape.SaveAndOffload,
	)
	ctx := t.Context()
	for _, y := range []*anyTape{nil, {}} {
		run := func(context.Context, []int) (int, error) { return 0, nil }
		over := func(context.Context, int, []int) error { return nil }
		view := func(v int) int { return v }
		zero := new(tape.Value[int])
		_, input := y.Input(ctx, "", 0)
		_, do := y.Do(ctx, tape.Op{}, run, zero)
		_, _, save := y.DoSave(ctx, tape.Op{}, tape.Op{}, func(context.Context, []int) (int, int, error) { return 0, 0, nil }, zero)
		_, overwrite := y.Overwrite(ctx, tape.Op{}, over, zero, nil)
		_, alias := y.Alias("", zero, view)
		_, done, get := y.Get(ctx, zero)
		_, take := y.Take(ctx, zero)
		for _, err := range []error{input, do, save, overwrite, alias, get, take, y.Free(zero), y.Banish(ctx, zero), y.Close()} {
			require.ErrorIs(t, err, snug.ErrConfig)
		}
		require.Nil(t, done)
	}
	y, err := tape.New(tape.Options[int]{Bytes: func(int) int64 { return 1 }})
	require.NoError(t, err)
	for _, v := range []*tape.Value[int]{nil, new(tape.Value[int])} {
		require.ErrorIs(t, y.Free(v), snug.ErrConfig)
		_, _, err := y.Get(ctx, v)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestDeepRecomputation has a chain of values that is too long to be computed again from
// its first one at once, which is an error, not the end of the stack.
func TestDeepRecomputation(t *testing.T) {
	const n = 1<<16 + 10
	tp, err := tape.New(tape.Options[int]{Bytes: func(int) int64 { return 1 }, Budget: 3, Heuristic: tape.LRU})
	require.NoError(t, err)
	defer tp.Close()
	y, err := tp.Input(t.Context(), "x", 0)
	require.NoError(t, err)
	next := func(_ context.Context, in []int) (int, error) { return in[0] + 1, nil }
	values := make([]*tape.Value[int], n)
	for i := range values {
		y, err = tp.Do(t.Context(), tape.Op{Name: "next", Bytes: 1, Cost: 1}, next, y)
		require.NoError(t, err)
		values[i] = y
	}
	_, _, err = tp.Get(t.Context(), values[n-5])
	require.ErrorIs(t, err, snug.ErrNoMemory)
	v, done, err := tp.Get(t.Context(), values[1000])
	require.NoError(t, err)
	require.Equal(t, 1001, v)
	done()
	v, _, err = tp.Get(t.Context(), values[20000]) // from there
	require.NoError(t, err)
	require.Equal(t, 20001, v)
}
