package fused

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The element after number 2^64-1 is number 0, however the tensor is cut into calls.
func TestMaskBeyondLastNumber(t *testing.T) {
	for _, before := range []uint64{1, 4, 128, 4096, 5000} {
		mask := DropoutMask{P: 0.5, Seed: 1, Tensor: 2, First: -before}
		x := fill(6000, 1)
		whole, parts := make([]float32, len(x)), make([]float32, len(x))
		require.NoError(t, Dropout(whole, x, mask))
		require.NoError(t, Dropout(parts[:before], x[:before], mask))
		mask.First = 0
		require.NoError(t, Dropout(parts[before:], x[before:], mask))
		require.Equal(t, whole, parts, "%d elements before", before)
	}
}
