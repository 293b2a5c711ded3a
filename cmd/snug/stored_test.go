package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// publishFP8 returns a folder of compressed-tensors in 8-bit floats with scales for rows.
func publishFP8(t *testing.T) string {
	t.Helper()
	dir := publish(t)
	w, err := amp.OpenWeights(dir)
	require.NoError(t, err)
	whole := filepath.Join(t.TempDir(), "model.safetensors")
	require.NoError(t, amp.SaveWeights(whole, func(yield func(amp.Tensor, snug.View) bool) {
		for _, tensor := range w.Tensors() {
			values := make([]float32, tensor.Len())
			require.NoError(t, w.Load(tensor.Name, snug.ViewOf(values)))
			if !strings.HasSuffix(tensor.Name, "_proj.weight") {
				if !yield(tensor, snug.ViewOf(values)) {
					return
				}
				continue
			}
			q, err := qlora.NewWeight(values, tensor.Shape, qlora.Options{Type: qlora.FP8, Scales: qlora.ByRow})
			require.NoError(t, err)
			scales, err := q.Absmax()
			require.NoError(t, err)
			tensor.DType = "F8_E4M3"
			if !yield(tensor, q.Packed()) || !yield(amp.Tensor{Name: tensor.Name + "_scale", Shape: []int{tensor.Shape[0], 1}}, snug.ViewOf(scales)) {
				return
			}
		}
	}, nil))
	require.NoError(t, w.Close())
	old, err := filepath.Glob(filepath.Join(dir, "model*"))
	require.NoError(t, err)
	for _, path := range old {
		require.NoError(t, os.Remove(path))
	}
	require.NoError(t, os.Rename(whole, filepath.Join(dir, "model.safetensors")))
	config := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(config, []byte(strings.Replace(string(text), "{", `{"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
		"quantization_status": "compressed", "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}},`, 1)), 0o600))
	return dir
}

// TestTuneFP8 tunes a folder in 8-bit floats as it is: the adapter, the merged model and the decoded matrices write the same answer. With flags that
// want other matrices they are decoded.
//
//check:not bits32
func TestTuneFP8(t *testing.T) {
	dir, data, out := publishFP8(t), chats(t, 40), t.TempDir()
	tuned, merged := filepath.Join(out, "tuned"), filepath.Join(out, "merged")
	status, text, errs := snugged("tune", "-model", dir, "-data", data, "-compute", "f32", "-steps", "6", "-lr", "0.05", "-o", tuned)
	require.Zero(t, status, errs)
	require.Contains(t, text, "frozen weights: 8 bits")
	require.NotContains(t, text, "decoded")
	status, text, errs = snugged("merge", "-model", dir, "-adapter", tuned, "-compute", "f32", "-o", merged)
	require.Zero(t, status, errs)
	require.Contains(t, text, "the matrices that "+dir+" has in fp8 are in floats, and config.json has no quantization_config")
	config, err := os.ReadFile(filepath.Join(merged, "config.json"))
	require.NoError(t, err)
	require.NotContains(t, string(config), "quantization_config")

	answer := func(args ...string) string {
		status, text, errs := snugged(append([]string{"generate", "-tokens", "8", "-prompt", "ab cd"}, args...)...)
		require.Zero(t, status, errs)
		return text
	}
	want := answer("-model", dir, "-adapter", tuned, "-compute", "f32")
	require.Equal(t, want, answer("-model", merged, "-compute", "f32"))
	require.Equal(t, answer("-model", dir, "-adapter", tuned), answer("-model", dir, "-adapter", tuned, "-base", "bf16"))
	require.Equal(t, answer("-model", dir), answer("-model", dir, "-base", "bf16", "-memory", "500MiB"))

	for _, c := range []struct {
		name, want string
		flags      []string
	}{
		{"nf4", "frozen weights: 4 bits", []string{"-base", "nf4"}}, {"bf16", "frozen weights: 16 bits", []string{"-base", "bf16"}},
		{"pissa", "", []string{"-adapter", "pissa"}}, {"full", "", []string{"-full"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, text, errs := snugged(append([]string{"tune", "-model", dir, "-data", data, "-steps", "1", "-o", filepath.Join(out, c.name)}, c.flags...)...)
			require.Zero(t, status, errs)
			require.Contains(t, text, dir+" has matrices in fp8: they are decoded while they are read")
			require.Contains(t, text, c.want)
		})
		if c.name != "pissa" && c.name != "full" {
			status, text, errs := snugged("plan", "-lora", "4", "-device", "8GB", "-base", c.name, dir)
			require.Zero(t, status, errs)
			require.Contains(t, text, c.want)
		}
	}
	status, _, errs = snugged("plan", "-device", "8GB", dir)
	require.Zero(t, status, errs)
}
