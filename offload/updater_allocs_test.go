package offload

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestUpdaterAllocatesNothing steps pages that are in memory.
func TestUpdaterAllocatesNothing(t *testing.T) {
	const n, pageLen = 4096, 1024
	s := memStore(t, Options{HostLimit: 1 << 20, NoPrefetch: true})
	opt, err := adamW(s, pageLen)
	require.NoError(t, err)
	u, err := NewUpdater(s, opt, UpdaterOptions{PageLen: pageLen})
	require.NoError(t, err)
	require.NoError(t, u.Add("w", n, nil))
	w, g := make([]snug.BFloat16, n), normals(n, 1)
	require.NoError(t, u.Bind("w", snug.ViewOf(w)))
	kerneltest.NoAllocs(t, func() {
		require.NoError(t, u.Accumulate("w", 0, snug.ViewOf(g), 0.5))
		_, err := u.Norm()
		require.NoError(t, err)
		require.NoError(t, u.Step(0.01, 1))
	})
}
