package accum

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLocalEndsAfterAll: once all ranks have met, a call returns what it should, although the context has ended.
func TestLocalEndsAfterAll(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ranks, err := Local(ctx, 1)
	require.NoError(t, err)
	cancel()
	for range 100 {
		require.NoError(t, ranks[0].Sum([]float64{1}))
	}
}
