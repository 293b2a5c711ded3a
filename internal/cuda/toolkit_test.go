//go:build (cuda || hip) && (linux || windows) && (amd64 || arm64)

package cuda

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestToolkitIsNotInTheCurrentFolder: a toolkit is where an absolute path says.
func TestToolkitIsNotInTheCurrentFolder(t *testing.T) {
	home := t.TempDir()
	for value, want := range map[string][]string{
		"": nil, ".": nil, "cuda": nil, filepath.Join("..", "cuda"): nil,
		home: {filepath.Join(home, "a"), filepath.Join(home, "b")},
	} {
		t.Setenv("SNUG_TEST_TOOLKIT", value)
		require.Equal(t, want, inToolkit("SNUG_TEST_TOOLKIT", "a", "b"), value)
	}
	t.Setenv("CUDA_HOME", "here")
	t.Setenv("CUDA_PATH", "here")
	for _, dir := range toolkitDirs() {
		require.True(t, filepath.IsAbs(dir), dir)
	}
}
