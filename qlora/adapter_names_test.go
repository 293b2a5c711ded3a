package qlora

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// TestWrappedAdapters loads files that were saved from wrapped models: the adapters are the same.
func TestWrappedAdapters(t *testing.T) {
	dir := t.TempDir()
	c := AdapterOptions{Rank: 2, Alpha: 2, Targets: Modules{Names: []string{"q_proj"}}}
	write := func(names ...string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, adapterConfigFile), []byte(`{"peft_type":"LORA","r":2,"lora_alpha":2,"target_modules":["q_proj"]}`), 0o600))
		require.NoError(t, amp.SaveWeights(filepath.Join(dir, adapterWeightsFile), func(yield func(amp.Tensor, snug.View) bool) {
			for i, name := range names {
				shape := []int{2, 3}
				if strings.Contains(name, "lora_B") {
					shape = []int{3, 2}
				}
				if !yield(amp.Tensor{Name: name, Shape: shape}, snug.ViewOf([]float32{float32(i), 1, 2, 3, 4, 5})) {
					return
				}
			}
		}, nil))
	}
	const a, b = "layers.0.self_attn.q_proj.lora_A.weight", "layers.0.self_attn.q_proj.lora_B.weight"
	for _, prefix := range []string{
		"base_model.model.model.", "_orig_mod.base_model.model.model.", "base_model.model._orig_mod.model.", "base_model.model.base_model.model.model.",
		"base_model.model.base_model.model.base_model.model.model.", "module.base_model.model.model.", "base_model.model.module.model.",
		"module._orig_mod.base_model.model.model.", "_orig_mod.module.base_model.model.model.",
	} {
		write(prefix+a, prefix+b)
		got, adapters, err := LoadAdapters(dir, nil)
		require.NoError(t, err, prefix)
		require.Equal(t, c, got)
		require.Len(t, adapters, 1)
		l := adapters["model.layers.0.self_attn.q_proj"]
		require.NotNil(t, l, prefix)
		require.Equal(t, []float32{0, 1, 2, 3, 4, 5}, l.A.Float32s())
		require.Equal(t, []float32{1, 1, 2, 3, 4, 5}, l.B.Float32s())
	}
	inner := "base_model.model.model.layers.0._orig_mod.self_attn.q_proj."
	write(inner+"lora_A.weight", inner+"lora_B.weight")
	_, adapters, err := LoadAdapters(dir, nil)
	require.NoError(t, err)
	require.Contains(t, adapters, "model.layers.0.self_attn.q_proj")

	write("base_model.model.model."+a, "_orig_mod.base_model.model.model."+a, "base_model.model.model."+b)
	_, _, err = LoadAdapters(dir, nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "are both")
	write("other.model."+a, "other.model."+b)
	_, _, err = LoadAdapters(dir, nil)
	require.ErrorIs(t, err, snug.ErrCorrupt)
	require.ErrorContains(t, err, `the name does not begin with "base_model.model."`)
}
