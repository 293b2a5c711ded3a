package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRun: a few steps of everything.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, run(t.Context(), dir, 4))
	require.FileExists(t, filepath.Join(dir, "adapter", "adapter_model.safetensors"))
}
