package fused

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// The loss of a row has the same bits in all chunks of up to 224 rows, where the products of larger ones share the
// panels of w.
func TestLargeChunks(t *testing.T) {
	const rows, vocab, cols = 468, 512, 600
	x, w := normals(newRand(1), snug.F32, rows*cols, 0, 1), normals(newRand(2), snug.F32, vocab*cols, 0, 0.05)
	logp := func(chunk int) []float32 {
		c, out, ws := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: chunk}, make([]float32, rows), make([]float32, 1<<20)
		require.NoError(t, LogProbs(c, out, make([]float32, rows), x, w, make([]int32, rows), ws))
		return out
	}
	requireBits(t, "Chunk 224", logp(9), logp(224))
	requireBits(t, "Chunk 128", logp(128), logp(224))
	require.InDeltaSlice(t, logp(128), logp(rows), 1e-5)
}
