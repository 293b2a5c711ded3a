package fused

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestDeviceCalls: once a device keeps the memory for its arguments and result, a call costs a copy for each slice, and
// for a loss one wait.
func TestDeviceCalls(t *testing.T) {
	for _, p := range kerneltest.Backends(t)[2:] {
		t.Run(p.Name, func(t *testing.T) {
			x, w := arrayOf(t, p.Dev, []float32{0, 0, 0}), arrayOf(t, p.Dev, []float32{1, 2})
			ws := arrayOf(t, p.Dev, make([]float32, 100))
			ids, c := []int32{0, 1, 1}, CrossEntropy{Vocab: 2, Cols: 1, Weights: []float32{1, 2, 3}}
			var before driver.Counts
			for range 3 {
				before = device.Counts(p.Dev)
				require.NoError(t, Embedding(x, w, ids, w, ids, 1))
				require.NoError(t, EmbeddingBackward(w, x, ids, 1, snug.Into{Beta: 1}))
				_, err := CrossEntropyLoss(c, x, w, ids, ws)
				require.NoError(t, err)
			}
			require.Equal(t, driver.Counts{Waits: 1, ToHost: 1, ToDevice: 5}, device.Counts(p.Dev).Minus(before))
		})
	}
}
