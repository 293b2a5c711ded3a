package transformer

import (
	"context"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// Rows that are left out come back as zeros, and the others as they were.
func TestCountedRows(t *testing.T) {
	for _, labels := range [][]int32{{1, 2, 3}, {-1, 2, 3}, {1, -1, 3}, {1, 2, -100}, {-1, -1, 3, -1, 5, 6, -1}, {-1, -1}, {}} {
		x, want := make([]float32, 2*len(labels)), make([]float32, 2*len(labels))
		var kept []float32
		var c counted
		for i, t := range labels {
			for j := range 2 {
				x[2*i+j] = float32(10*i + j + 1)
				if t >= 0 {
					want[2*i+j] = x[2*i+j]
					kept = append(kept, x[2*i+j])
				}
			}
		}
		c.set(labels, nil, snug.CPU())
		v := c.gather(snug.ViewOf(x), 2)
		require.Equal(t, len(kept), v.Len(), labels)
		require.ElementsMatch(t, kept, v.Float32s())
		c.scatter(snug.ViewOf(x), 2)
		require.Equal(t, want, x, labels)
		require.Len(t, c.labels, len(kept)/2)
	}
}

// Ignored labels cost nothing, and change nothing: the batch without their rows' labels has the same loss, to the bit,
// and the same gradients.
func TestIgnoredLabels(t *testing.T) {
	ctx := context.Background()
	for _, c := range []*Config{tiny(), tinyGemma(), tinyGPT2(GELU)} {
		for _, weighted := range []bool{false, true} {
			m := newTiny(t, c, Options{Seed: 3})
			b := someBatch(4, c.Vocab, 2, 8)
			ones := b
			ones.Weights = make([]float32, len(b.Tokens))
			b.Labels = append([]int32(nil), b.Labels...)
			for i := range b.Tokens {
				if ones.Weights[i] = float32(i%3) * 0.5; i%3 == 0 {
					b.Labels[i] = -1
				}
			}
			if weighted {
				b.Weights = ones.Weights
			} else {
				for i := range ones.Weights {
					ones.Weights[i] = min(1, 2*ones.Weights[i])
				}
			}
			all, want := gradientsAndLoss(t, m, ones) // rows of weight 0 are computed
			some, have := gradientsAndLoss(t, m, b)
			require.Equal(t, all.Sum, some.Sum)
			for name, g := range have {
				require.InDeltaSlice(t, want[name], g, 1e-5, name)
			}
			loss, err := m.Backprop(ctx, b, 1, newBegun(t, m))
			require.NoError(t, err)
			require.Equal(t, some.Sum, loss.Sum)
		}
	}
}
