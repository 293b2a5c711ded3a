package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A run of a model with a weight that is not finite writes nothing, with and without samples to measure the loss.
//
//check:not bits32
func TestTuneOfNaN(t *testing.T) {
	broken := publish(t)
	changeFile(t, filepath.Join(broken, "model-00002-of-00002.safetensors"), func(b []byte) []byte {
		return append(b[:len(b)-4], 0, 0, 0xc0, 0x7f) // NaN, in float32 and in bfloat16
	})
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
