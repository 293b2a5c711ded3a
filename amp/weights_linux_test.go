package amp

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestSaveWeightsToAFullDisk has a file system of 64 KiB.
func TestSaveWeightsToAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("mount:", err)
	}
	defer func() { require.NoError(t, syscall.Unmount(dir, 0)) }()
	path := filepath.Join(dir, "weights")
	require.NoError(t, SaveWeights(path, all(vector("x", snug.ViewOf(kerneltest.Uniform(1, 1000)))), nil))
	old, err := os.ReadFile(path)
	require.NoError(t, err)

	err = SaveWeights(path, all(vector("x", snug.ViewOf(kerneltest.Uniform(1, 50000)))), nil)
	require.ErrorIs(t, err, syscall.ENOSPC)
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	require.True(t, bytes.Equal(old, now))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left")
}
