package main

import (
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/transformer"
	"github.com/stretchr/testify/require"
)

// A run of a model with a weight that is not finite writes nothing, with and without samples to measure the loss.
func TestTuneOfNaN(t *testing.T) {
	dir, broken := publish(t), t.TempDir()
	m, err := transformer.Open(dir, transformer.Options{DType: snug.F32})
	require.NoError(t, err)
	snug.Host[float32](m.Params()[2].Value)[0] /= 0
	require.NoError(t, m.Save(broken, 0))
	require.NoError(t, copyCompanions(broken, dir, false))
	for _, kind := range []string{"lora", "lora-fa", "vera"} {
		for held, want := range map[string]string{"0": "the loss is not finite in steps 1 to 2", "0.2": "the loss on held-out samples is not finite before the first step"} {
			out := filepath.Join(t.TempDir(), "out")
			status, _, errs := snugged("tune", "-model", broken, "-data", chats(t, 8), "-steps", "2", "-adapter", kind, "-lora", "2", "-held-out", held, "-o", out)
			require.Equal(t, 1, status, kind)
			require.Contains(t, errs, "the run has diverged: "+want, kind)
			require.Contains(t, errs, "a weight of "+broken+" may not be finite", kind)
			require.NoDirExists(t, out, kind)
		}
	}
}
