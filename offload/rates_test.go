package offload

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// TestMeasuredFileHasNoName: while pages are measured their file has no name any more, so
// that nothing is left of a process that is killed.
func TestMeasuredFileHasNoName(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("files that are open have a name here")
	}
	dir := t.TempDir()
	f, err := os.CreateTemp(dir, "x")
	require.NoError(t, err)
	_, err = measurePages(f, maxMeasured)
	require.NoError(t, err)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
	require.NoError(t, f.Close())
}

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

	for _, size := range []int64{math.MinInt64, -1, 0, 1 << 20, mostMeasured + 1, math.MaxInt64} {
		_, _, err = MeasurePages(dir, size)
		require.ErrorIs(t, err, snug.ErrConfig, size)
	}
	_, _, err = MeasurePages(filepath.Join(dir, "missing"), 8<<20)
	require.ErrorIs(t, err, os.ErrNotExist)
}
