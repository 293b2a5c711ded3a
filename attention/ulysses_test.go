package attention_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

var ulysses = divided{
	rows: func(n, rank, size int) []attention.Rows {
		return []attention.Rows{{Lo: n / size * rank, Hi: n / size * (rank + 1)}}
	},
	workspaces: attention.Options.UlyssesWorkspaceLen,
	forward: func(r rank, out, lse, q, k, v snug.View, c attention.Options, ws snug.View) error {
		return attention.UlyssesForward(r, out, lse, q, k, v, c, ws)
	},
	backward: func(r rank, dq, dk, dv, dout, q, k, v, out, lse snug.View, c attention.Options, ws snug.View) error {
		return attention.UlyssesBackward(r, dq, dk, dv, dout, q, k, v, out, lse, c, ws)
	},
}

var ulyssesFeatures = append([][]string{
	{"lengths of keys"}, {"causal", "lengths of keys", "dropout"}, {"score", "alibi", "dropout"}, {"score", "packed", "alibi"}, {"alibi", "lengths of keys"},
	{"one bias"}, {"one bias", "one mask", "dropout", "causal"}, {"one mask", "packed"}, {"one bias", "one mask", "alibi", "lengths of keys"},
}, ringFeatures...)

// Any number of ranks gives the bits of one process.
func TestUlysses(t *testing.T) {
	for i, names := range ulyssesFeatures {
		for n, heads := range [][3]int{{1, 4, 2}, {2, 4, 2}, {2, 6, 6}, {3, 6, 3}, {3, 6, 1}, {4, 8, 2}, {5, 5, 1}, {8, 8, 4}, {8, 16, 8}} {
			size := heads[0]
			if !kerneltest.Full() && (i+n)%2 == 1 {
				continue
			}
			dt := dtypes[(i+n)%3]
			t.Run(fmt.Sprintf("%s/%v/%s", strings.Join(names, " "), heads, dt), func(t *testing.T) {
				c := attention.Options{Batch: 2, Heads: heads[1], KVHeads: heads[2], SeqQ: size * (3 + i), Dim: 8, DimV: 5}
				if n%2 == 0 && !strings.Contains(strings.Join(names, " "), "packed") {
					c.SeqK = size * (5 + i%4)
				}
				w := attention.NewWhole(t, c, dt, uint64(16*i+n), names...)
				got := ulysses.run(t, w, size, kerneltest.Backend{}, n%2 == 1)
				near(t, w, size, got)
				want := w.One(t, kerneltest.Backend{})
				require.Equal(t, want.Out, got.Out)
				require.Equal(t, want.LSE, got.LSE)
				require.Equal(t, want.DQ, got.DQ)
				if heads[2]%size == 0 && w.C.KLens == nil {
					require.Equal(t, want.DK, got.DK)
					require.Equal(t, want.DV, got.DV)
				}
				require.Equal(t, append([]float32{}, want.DSinks...), got.DSinks)
			})
		}
	}
}

// A device that computes splits of the keys has as many of a rank's heads as of all.
func TestUlyssesWithSplits(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, names := range [][]string{{}, {"causal", "dropout"}} {
			c := attention.Options{Batch: 1, Heads: 4, KVHeads: 2, SeqQ: 4, SeqK: 600, Dim: 8}
			w := attention.NewWhole(t, c, snug.F32, uint64(i), names...)
			got, want := ulysses.run(t, w, 2, backend, true), w.One(t, backend)
			require.Equal(t, want.Out, got.Out)
			require.Equal(t, want.LSE, got.LSE)
			require.Equal(t, want.DQ, got.DQ)
		}
	})
}
