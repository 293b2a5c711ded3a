package fused

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/stretchr/testify/require"
)

// The gradient of bfloat16 rows is that of tiles of any number of classes, for any number of rows.
func TestTilesOfRaggedRows(t *testing.T) {
	const vocab, cols = 256, 64
	for rows := 1; rows <= 40; rows++ {
		put := func(n int, sigma float64) []snug.BFloat16 {
			v := make([]snug.BFloat16, n)
			half.Store(snug.ViewOf(v), 0, normals(newRand(uint64(n)), snug.BF16, n, 0, sigma))
			return v
		}
		x, w, targets := put(rows*cols, 1), put(vocab*cols, 0.1), make([]int32, rows)
		grad := func(tile int) []float32 {
			c, dx := CrossEntropy{Vocab: vocab, Cols: cols, Tile: tile}, make([]snug.BFloat16, rows*cols)
			ws := make([]float32, 1<<20)
			_, err := CrossEntropyBackward(c, dx, noFloats, x, w, targets, 1, snug.Into{}, ws)
			require.NoError(t, err)
			return load(make([]float32, len(dx)), snug.ViewOf(dx), 0)
		}
		require.InDeltaSlice(t, grad(vocab), grad(64), 0.004, "%d rows", rows)
	}
}
