package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestExperts: folders with experts, of gpt_oss also in MXFP4, are planned, tuned, merged, inspected and go on with a
// text.
func TestExperts(t *testing.T) {
	data := chats(t, 6)
	for _, name := range []string{"mixtral", "qwen3_moe", "gpt_oss", "gpt_oss_mxfp4"} {
		model, from := t.TempDir(), filepath.Join(filepath.Dir(published), name)
		for _, file := range []string{"config.json", "model.safetensors"} {
			text, err := os.ReadFile(filepath.Join(from, file))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(model, file), text, 0o600))
		}
		require.NoError(t, copyCompanions(model, publish(t), false, nil))
		adapter, merged := filepath.Join(model, "adapter"), filepath.Join(model, "merged")
		for _, args := range [][]string{
			{"plan", "-lora", "2", model}, {"inspect", filepath.Join(model, "model.safetensors")},
			{"tune", "-model", model, "-data", data, "-o", adapter, "-lora", "2", "-steps", "2", "-batch", "2"},
			{"merge", "-model", model, "-adapter", adapter, "-o", merged},
			{"generate", "-model", merged, "-prompt", "say q", "-tokens", "3"},
		} {
			status, out, errs := snugged(args...)
			require.Zero(t, status, "%s %v: %s%s", name, args, out, errs)
		}
	}
}
