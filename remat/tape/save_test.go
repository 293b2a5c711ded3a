package tape

import (
	"context"
	"fmt"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/remat/internal/pass"
	"github.com/stretchr/testify/require"
)

// TestDoSave: layers keep their outputs and drop their saved sets, or drop both under a budget. Each layer counts its
// first passes, as batch norm does for its averages.
func TestDoSave(t *testing.T) {
	const n = 12
	never := func(context.Context, []int) (int, int, error) { panic("called") }
	for _, tc := range []struct {
		name       string
		budget     int64
		policy     Policy
		peak       int64
		recomputed int
	}{
		// The input, n outputs and their saved sets of 10 bytes, and a gradient.
		{"everything kept", 0, nil, 1 + 11*n + 1, 0},
		// The saved set of the layer whose backward step runs is the only one.
		{"saved sets dropped", 0, SaveAllBut("saved").MustRecompute(), 1 + n + 2*10 + 1, n},
		{"a budget for the outputs", 1 + n + 22, nil, 1 + n + 22, n - 2},
		{"a budget for three layers", 34, nil, 34, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := t.Context()
			tape, err := New(Options[int]{Bytes: func(v int) int64 { return int64(1 + 9*(v&1)) }, Budget: tc.budget, Policy: tc.policy})
			require.NoError(t, err)
			defer tape.Close()
			first, runs := make([]int, n), make([]int, n)
			y, err := tape.Input(ctx, "x", 2)
			require.NoError(t, err)
			var saved []*Value[int]
			for i := range n {
				var s *Value[int]
				y, s, err = tape.DoSave(ctx, Op{Name: "layer", Bytes: 1, Cost: 1}, Op{Name: "layer", Value: "saved", Bytes: 10}, func(ctx context.Context, in []int) (int, int, error) {
					if pass.First(ctx) {
						first[i]++
					}
					runs[i]++
					return in[0] + 2, in[0]*2 + 1, nil
				}, y)
				require.NoError(t, err)
				saved = append(saved, s)
			}
			d := y
			for i := n - 1; i >= 0; i-- {
				next, err := tape.Do(ctx, Op{Name: "backward", Bytes: 1, Cost: 1}, func(_ context.Context, in []int) (int, error) {
					require.Equal(t, (2+2*i)*2+1, in[1])
					return in[0] + 2*in[1], nil
				}, d, saved[i])
				require.NoError(t, err)
				require.NoError(t, tape.Free(saved[i]))
				if d != y {
					require.NoError(t, tape.Free(d))
				}
				d = next
			}
			v, done, err := tape.Get(ctx, d)
			require.NoError(t, err)
			done()
			want := 2 + 2*n
			for i := range n {
				want += 2 * ((2+2*i)*2 + 1)
			}
			require.Equal(t, want, v)
			stats := tape.Stats()
			require.LessOrEqual(t, stats.Peak, tc.peak)
			if tc.recomputed > 0 || tc.budget == 0 {
				require.Equal(t, tc.recomputed, stats.Recomputed, fmt.Sprint(runs))
			}
			for i := range n {
				require.Equal(t, 1, first[i])
			}
		})
	}
	tape, err := New(Options[int]{Bytes: func(int) int64 { return 1 }})
	require.NoError(t, err)
	defer tape.Close()
	_, _, err = tape.DoSave(t.Context(), Op{}, Op{}, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, _, err = tape.DoSave(t.Context(), Op{}, Op{Bytes: -1}, never)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, _, err = tape.DoSave(t.Context(), Op{Cost: -1}, Op{}, never)
	require.ErrorIs(t, err, snug.ErrConfig)
}
