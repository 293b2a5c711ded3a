package fused

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// The loss of a row does not depend on Chunk, also where a chunk has so many rows that workers share the panels of w.
func TestLargeChunks(t *testing.T) {
	const rows, vocab, cols = 300, 512, 600
	x, w := normals(newRand(1), snug.F32, rows*cols, 0, 1), normals(newRand(2), snug.F32, vocab*cols, 0, 0.05)
	logp := func(chunk int) []float32 {
		c, out, ws := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: chunk}, make([]float32, rows), make([]float32, 1<<20)
		require.NoError(t, LogProbs(c, out, make([]float32, rows), x, w, make([]int32, rows), ws))
		return out
	}
	require.Equal(t, logp(100), logp(150))
	require.Equal(t, logp(100), logp(300))
}
