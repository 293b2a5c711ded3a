package accum

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShardedEmpty: a window of a rank that has run micro-batches whose gradients are thrown away has the bits of a window
// where it has not.
func TestShardedEmpty(t *testing.T) {
	run := func(o ShardedOptions, empty int) map[string][]float32 {
		sums := make([]map[string][]float32, 2)
		for rank, err := range all(t, 2, func(rank int, r Reducer) error {
			o, sum := o, map[string][]float32{}
			o.Reducer = r
			s, err := NewSharded(shardedParams, o)
			if err != nil {
				return err
			}
			weights := []float64{1, 2, 3}[:3-2*rank] // rank 1 has one
			if err := s.Start(weights); err != nil {
				return err
			}
			addEmpty := func() error {
				if err := s.BeginEmpty(); err != nil {
					return err
				}
				for i := len(shardedParams) - 1; i >= 0; i-- {
					acc, _, err := s.Into(shardedParams[i].Name)
					if err != nil {
						return err
					}
					for i := range acc.Float32s() {
						acc.Float32s()[i] = nan
					}
					if err := s.Done(shardedParams[i].Name); err != nil {
						return err
					}
				}
				return s.End()
			}
			for range empty * rank {
				if !o.Whole {
					break
				}
				if err := addEmpty(); err != nil {
					return err
				}
			}
			for micro := range weights {
				if err := addSharded(s, rank, micro, false, micro == len(weights)-1); err != nil {
					return err
				}
			}
			for range empty * rank {
				if o.Whole {
					break
				}
				if err := addEmpty(); err != nil {
					return err
				}
			}
			if err := s.Finish(); err != nil {
				return err
			}
			for name, g := range s.Gradients() {
				sum[name] = slices.Clone(g.Float32s())
			}
			sums[rank] = sum
			return s.Close()
		}) {
			require.NoError(t, err, rank)
		}
		return sums[0]
	}
	for _, o := range []ShardedOptions{{Whole: true, Bucket: 100}, {Bucket: 100}, {Bucket: 100, Chunk: halves}} {
		require.Equal(t, run(o, 0), run(o, 2))
	}

	alone, err := Local(t.Context(), 1)
	require.NoError(t, err)
	for _, whole := range []bool{false, true} {
		s, err := NewSharded(shardedParams, ShardedOptions{Reducer: alone[0], Whole: whole})
		require.NoError(t, err)
		require.ErrorContains(t, s.BeginEmpty(), "call Start first")
		require.NoError(t, s.Start([]float64{1, 1}))
		if !whole {
			require.ErrorContains(t, s.BeginEmpty(), "0 micro-batches of 2 have begun")
		}
		require.NoError(t, s.Begin())
		require.ErrorContains(t, s.BeginEmpty(), "a micro-batch is open")
		require.NoError(t, s.End())
		if whole {
			require.ErrorContains(t, s.BeginEmpty(), "the empty ones come first")
		}
		require.NoError(t, s.Begin())
		require.NoError(t, s.End())
		if !whole {
			require.ErrorContains(t, s.BeginEmpty(), "no rank has more")
		}
		require.NoError(t, s.Finish())
		require.NoError(t, s.Close())
	}
}

// halves is a Chunk for two ranks.
func halves(name string) int {
	for i, p := range shardedParams {
		if p.Name == name && i%2 == 0 {
			return (p.Len + 1) / 2
		}
	}
	return 0
}
