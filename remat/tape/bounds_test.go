package tape

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
)

// TestOptionsAtEdges: sizes, costs and options at the edges of their types give results or
// errors of a type.
func TestOptionsAtEdges(t *testing.T) {
	sizes := rapid.SampledFrom([]int64{math.MinInt64, -1, 0, 1, 7, math.MaxInt64 / 2, math.MaxInt64})
	times := rapid.SampledFrom([]float64{math.Inf(-1), -1, 0, 5e-324, 1, 1e30, maxTime, math.MaxFloat64, math.Inf(1), math.NaN()})
	typed := func(t require.TestingT, err error) {
		if err != nil {
			require.True(t, errors.Is(err, snug.ErrConfig) || errors.Is(err, snug.ErrNoMemory) || errors.Is(err, snug.ErrShape), "%v", err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		typed := func(err error) { typed(t, err) }
		tape, err := New(Options[int64]{
			Bytes: func(v int64) int64 { return v }, Budget: sizes.Draw(t, "budget"),
			Heuristic: Heuristic(rapid.Byte().Draw(t, "heuristic") % 8), MaxRecompute: times.Draw(t, "recompute"),
		})
		typed(err)
		if err != nil {
			return
		}
		defer tape.Close()
		x, err := tape.Input(t.Context(), "x", sizes.Draw(t, "input size"))
		typed(err)
		for range 4 {
			op := Op{Bytes: sizes.Draw(t, "declared"), Extra: sizes.Draw(t, "extra"), Cost: times.Draw(t, "cost")}
			size := sizes.Draw(t, "result")
			y, err := tape.Do(t.Context(), op, func(_ context.Context, _ []int64) (int64, error) { return size, nil }, x)
			typed(err)
			if err == nil {
				_, done, err := tape.Get(t.Context(), y)
				typed(err)
				if err == nil {
					done()
				}
			}
		}
		require.GreaterOrEqual(t, tape.Stats().Held, int64(0))
	})
}
