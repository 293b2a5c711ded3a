package accum

import (
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
)

func TestNewBatch(t *testing.T) {
	tests := []struct{ global, micro, ranks, wantMicro, wantWindow int }{
		{64, 16, 1, 16, 4}, {64, 16, 2, 16, 2}, {64, 100, 1, 64, 1}, {60, 16, 1, 15, 4}, {7, 2, 2, 2, 2}, {1, 1, 1, 1, 1},
	}
	for _, test := range tests {
		b, err := NewBatch(test.global, test.micro, test.ranks)
		require.NoError(t, err)
		require.Equal(t, Batch{test.global, test.wantMicro, test.wantWindow, test.ranks}, b)
	}
	for _, bad := range [][3]int{{0, 1, 1}, {4, 0, 1}, {4, 1, 0}, {3, 1, 4}, {-1, 1, 1}} {
		_, err := NewBatch(bad[0], bad[1], bad[2])
		require.ErrorIs(t, err, snug.ErrConfig)
		_, err = FindMicroBatch(bad[0], bad[2], bad[1], nil)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestFindMicroBatch compares with the largest size that fits, for every limit,
// and checks that nothing larger was worked on twice.
func TestFindMicroBatch(t *testing.T) {
	for _, global := range []int{1, 2, 7, 48, 60, 97} {
		for _, ranks := range []int{1, 2, 3} {
			if global < ranks {
				continue
			}
			for limit := 0; limit <= global; limit++ {
				tried := map[int]int{}
				b, err := FindMicroBatch(global, ranks, global, func(b Batch) error {
					tried[b.Micro]++
					if b.Micro > limit {
						return fmt.Errorf("%d samples: %w", b.Micro, snug.ErrNoMemory)
					}
					return nil
				})
				if limit == 0 {
					require.ErrorIs(t, err, snug.ErrNoMemory)
					require.ErrorContains(t, err, "one sample")
					continue
				}
				require.NoError(t, err)
				best, err := NewBatch(global, limit, ranks)
				require.NoError(t, err)
				require.Equal(t, best, b, "global %d, ranks %d, limit %d", global, ranks, limit)
				for size, times := range tried {
					require.Equal(t, 1, times, "size %d", size)
				}
				require.LessOrEqual(t, len(tried), 2*int(math.Log2(float64(global)))+2)
			}
		}
	}
	broken := errors.New("broken")
	for _, limit := range []int{64, 3} {
		_, err := FindMicroBatch(64, 1, 64, func(b Batch) error {
			if b.Micro > limit || limit == 3 && b.Micro == 2 {
				return snug.ErrNoMemory
			}
			return broken
		})
		require.Equal(t, broken, err)
	}
}

// batchProperty checks that every sample is worked on once, in micro-batches of
// about one size.
func batchProperty(t *rapid.T) {
	ranks := rapid.IntRange(1, 9).Draw(t, "ranks")
	global := rapid.IntRange(ranks, 200).Draw(t, "global")
	b, err := NewBatch(global, rapid.IntRange(1, 40).Draw(t, "micro"), ranks)
	require.NoError(t, err)
	next := 0
	for rank := range ranks {
		least, most := global, 0
		for micro := range b.Window {
			lo, hi := b.Samples(rank, micro)
			require.Equal(t, next, lo)
			next = hi
			least, most = min(least, hi-lo), max(most, hi-lo)
		}
		require.LessOrEqual(t, most, b.Micro)
		require.LessOrEqual(t, most-least, 1)
	}
	require.Equal(t, global, next)
}

//check:in tiers
func TestBatchProperty(t *testing.T) { rapid.Check(t, batchProperty) }
func FuzzBatch(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(batchProperty)) }

func TestLearningRates(t *testing.T) {
	require.InDelta(t, 0.4, LinearLR(0.1, 256, 1024), 1e-12)
	require.InDelta(t, 0.2, SquareRootLR(0.1, 256, 1024), 1e-12)
	for _, bad := range [][2]float64{{0, 1}, {1, 0}, {-1, 1}, {1, math.NaN()}} {
		require.True(t, math.IsNaN(LinearLR(1, bad[0], bad[1])))
		require.True(t, math.IsNaN(SquareRootLR(1, bad[0], bad[1])))
	}
}
