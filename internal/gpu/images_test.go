package gpu_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug/internal/gpu/images"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// TestImages fails when a kernel's source and its compiled image are not of the
// same time.
func TestImages(t *testing.T) {
	modules, err := images.Find(root)
	require.NoError(t, err)
	for _, m := range modules {
		require.NoError(t, m.Check(root), "run internal/gpu/images/build.sh and commit what it writes")
	}
	orphans, err := images.Orphans(root)
	require.NoError(t, err)
	require.Empty(t, orphans, "images without a source")
}

// TestImageParts looks for what an image must hold: it is not compressed.
func TestImageParts(t *testing.T) {
	modules, err := images.Find(root)
	require.NoError(t, err)
	for _, m := range modules {
		image, err := os.ReadFile(filepath.Join(root, m.Image()))
		require.NoError(t, err, "run internal/gpu/images/build.sh")
		require.True(t, bytes.HasPrefix(image, []byte("\x50\xed\x55\xba")), "%s is a fatbin", m.Image())
		require.Equal(t, len(m.Archs()), bytes.Count(image, []byte("\x7fELF")), "machine code in %s", m.Image())
		if !m.Portable() {
			require.NotContains(t, string(image), ".version", "PTX in %s", m.Image())
			continue
		}
		require.Contains(t, string(image), ".version 8.0", "PTX of CUDA 12.0 in %s", m.Image())
		require.Contains(t, string(image), ".target sm_"+images.Archs[0], m.Image())
	}
}
