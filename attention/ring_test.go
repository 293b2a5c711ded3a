package attention_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var dtypes = []snug.DType{snug.F32, snug.F16, snug.BF16}

// ringFeatures are sets of features that a ring takes.
var ringFeatures = [][]string{
	{}, {"causal"}, {"shifted"}, {"shifted", "window"}, {"window"}, {"causal", "window", "sinks"}, {"softcap", "alibi"}, {"causal", "dropout"}, {"causal", "gradient in lse", "sinks"},
	{"packed"}, {"packed", "causal"}, {"packed", "shifted", "dropout", "sinks"}, {"packed", "causal", "window", "alibi", "gradient in lse"},
	{"packed", "causal", "dropout", "softcap"},
}

// Any number of ranks gives the results of the definition.
func TestRing(t *testing.T) {
	for i, names := range ringFeatures {
		for n, size := range []int{1, 2, 3, 4, 5, 8} {
			if !kerneltest.Full() && (i+n)%2 == 1 {
				continue
			}
			dt := dtypes[(i+n)%3]
			t.Run(fmt.Sprintf("%s/%d/%s", strings.Join(names, " "), size, dt), func(t *testing.T) {
				c := attention.Options{Batch: 2, Heads: 4, KVHeads: 1 + i%2, SeqQ: []int{61, 7, 64, 33}[(i+n)%4], Dim: 8, DimV: 5}
				if n%2 == 1 && !slices.Contains(names, "packed") {
					c.SeqK = []int{5, 150}[n/2%2]
				}
				w := attention.NewWhole(t, c, dt, uint64(i), names...)
				near(t, w, size, ring.run(t, w, size, kerneltest.Backend{}, n%2 == 1))
			})
		}
	}
}

func TestRingRows(t *testing.T) {
	for _, size := range []int{1, 2, 3, 7, 8} {
		for n := range 40 {
			seen := make([]int, n)
			for rank := range size {
				for _, r := range attention.RingRows(n, rank, size) {
					require.GreaterOrEqual(t, r.Len(), n/(2*size))
					require.LessOrEqual(t, r.Len(), n/(2*size)+1)
					for i := r.Lo; i < r.Hi; i++ {
						seen[i]++
					}
				}
			}
			for i, times := range seen {
				require.Equal(t, 1, times, "row %d of %d on %d ranks", i, n, size)
			}
		}
	}
	for _, x := range [][3]int{{-1, 0, 1}, {4, -1, 2}, {4, 2, 2}, {4, 0, 0}, {4, 0, -1}, {4, 0, math.MaxInt}} {
		require.Zero(t, attention.RingRows(x[0], x[1], x[2]))
	}
}

// Long spans have several tiles of queries and of keys.
//
//check:in race
func TestRanksLong(t *testing.T) {
	kerneltest.Slow(t) // takes seconds
	for i, names := range [][]string{{"causal", "dropout", "sinks"}, {"packed", "causal", "alibi"}, {"window", "softcap", "gradient in lse"}} {
		t.Run(strings.Join(names, " "), func(t *testing.T) {
			c := attention.Options{Batch: 1, Heads: 4, KVHeads: 2, SeqQ: 1500, Dim: 8}
			w := attention.NewWhole(t, c, dtypes[i], uint64(i), names...)
			near(t, w, 2, ring.run(t, w, 2, kerneltest.Backend{}, i == 1))
			near(t, w, 2, ulysses.run(t, w, 2, kerneltest.Backend{}, i == 1))
		})
	}
}

// Devices compute over ranks as the CPU does: with features, and on matrix units without.
//
//check:in tiers arm64
func TestRanksOnBackends(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, names := range [][]string{{"causal", "sinks"}, {"packed", "causal", "dropout", "alibi", "gradient in lse"}, {"window", "softcap"}, {"causal"}, {}} {
			t.Run(strings.Join(names, " "), func(t *testing.T) {
				if backend.Emulated && !kerneltest.Full() && i%2 == 0 {
					return // slow
				}
				c := attention.Options{Batch: 2, Heads: 4, KVHeads: 1 + i%2, SeqQ: 42, Dim: 8, DimV: 5}
				if i > 2 {
					c.SeqQ, c.DimV = 80, 16
				}
				w := attention.NewWhole(t, c, dtypes[(i+i/3)%3], uint64(i), names...)
				near(t, w, 2+i%2, ring.run(t, w, 2+i%2, backend, i == 0))
				near(t, w, 2, ulysses.run(t, w, 2, backend, i == 0))
			})
		}
	})
}
