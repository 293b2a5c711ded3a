//go:build cuda || hip || metal || emu

package fused

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Gradients in bfloat16 stay within the logits of their own row, and begin no
// further behind them than a step of the kernel.
func TestNarrowStride(t *testing.T) {
	for _, c := range []struct{ rows, vocab, want int }{
		{1, 1, 8}, {2, 1, 2}, {128, 50257, 100520}, {128, 50304, 100608}, {4096, 50257, 100514}, {128, 700, 1400}, {128, 701, 1402}, {50, 701, 1408},
	} {
		_, _, step := lossWhole.size(c.vocab)
		stride := narrowStride(c.rows, c.vocab, step)
		require.Equal(t, c.want, stride, "%d rows of %d", c.rows, c.vocab)
		for r := range c.rows {
			behind := r * (stride - 2*c.vocab)
			require.GreaterOrEqual(t, behind, 0)
			require.LessOrEqual(t, behind, min(c.vocab, step))
		}
	}
}
