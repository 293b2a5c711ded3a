package main

import (
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/transformer"
	"github.com/stretchr/testify/require"
)

// A run whose gradients are never finite writes nothing.
func TestTuneOfNaN(t *testing.T) {
	dir, broken := publish(t), t.TempDir()
	m, err := transformer.Open(dir, transformer.Options{DType: snug.F32})
	require.NoError(t, err)
	snug.Host[float32](m.Params()[2].Value)[0] /= 0
	require.NoError(t, m.Save(broken, 0))
	require.NoError(t, copyCompanions(broken, dir))
	for _, kind := range []string{"lora", "lora-fa", "vera"} {
		out := filepath.Join(t.TempDir(), "out")
		status, _, errs := snugged("tune", "-model", broken, "-data", chats(t, 8), "-steps", "2", "-adapter", kind, "-lora", "2", "-o", out)
		require.Equal(t, 1, status, kind)
		require.Contains(t, errs, "no step changed anything, and nothing is written", kind)
		require.NoDirExists(t, out, kind)
	}
}
