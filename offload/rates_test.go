package offload

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

func TestMeasurePages(t *testing.T) {
	dir := t.TempDir()
	best, all, err := MeasurePages(dir, 5<<20)
	require.NoError(t, err)
	require.Contains(t, all, best)
	plain := 0
	for _, r := range all {
		require.Positive(t, r.Read)
		require.Positive(t, r.Write)
		require.GreaterOrEqual(t, best.both(), 0.95*r.both())
		if !r.Direct {
			plain++
		}
	}
	require.Equal(t, 4, plain, "64 KiB to 4 MiB")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)

	_, _, err = MeasurePages(dir, 1<<20)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, _, err = MeasurePages(filepath.Join(dir, "missing"), 8<<20)
	require.ErrorIs(t, err, os.ErrNotExist)
}
