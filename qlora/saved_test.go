package qlora

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestModulesToSave: parameters that trained beside adapters are saved with them, and loaded.
func TestModulesToSave(t *testing.T) {
	c := AdapterOptions{Rank: 2, Alpha: 4, ModulesToSave: []string{"norm", "lm_head"}, Other: map[string]json.RawMessage{"ensure_weight_tying": []byte("true")}}
	require.True(t, c.SavesModule("model.layers.0.input_layernorm"))
	require.False(t, c.SavesModule("model.norms"))
	value := func(x ...float32) snug.View { return snug.ViewOf(x) }
	modules := []Module{
		{"lm_head.weight", []int{2, 3}, value(1, 2, 3, 4, 5, 6)},
		{"model.norm.weight", []int{3}, snug.ViewOf([]snug.BFloat16{snug.ToBFloat16(1), snug.ToBFloat16(2), snug.ToBFloat16(3)})},
		{"model.norm.bias", []int{3}, value(7, 8, 9)},
	}
	dir := t.TempDir()
	require.NoError(t, SaveAdapters(dir, c, someAdapters(c), modules...))
	got, adapters, err := LoadAdapters(dir, nil)
	require.NoError(t, err)
	require.Len(t, adapters, len(someAdapters(c)))
	require.Equal(t, c.ModulesToSave, got.ModulesToSave)
	require.Equal(t, json.RawMessage("true"), got.Other["ensure_weight_tying"])
	read := []Module{{"lm_head.weight", []int{2, 3}, value(make([]float32, 6)...)}, {"model.norm.weight", []int{3}, value(0, 0, 0)}, {"model.norm.bias", []int{3}, value(0, 0, 0)}}
	require.NoError(t, LoadModules(dir, read...))
	require.Equal(t, []float32{1, 2, 3, 4, 5, 6}, read[0].Value.Float32s())
	require.Equal(t, []float32{1, 2, 3}, read[1].Value.Float32s())
	require.Equal(t, []float32{7, 8, 9}, read[2].Value.Float32s())

	require.ErrorIs(t, LoadModules(dir, read[:2]...), snug.ErrConfig, "one more in the folder")
	require.ErrorIs(t, LoadModules(dir, append(read, Module{"lm_head.bias", []int{1}, value(0)})...), snug.ErrCorrupt)
	require.ErrorIs(t, LoadModules(dir, Module{"lm_head.weight", []int{6}, value(make([]float32, 6)...)}), snug.ErrCorrupt)
	require.ErrorIs(t, LoadModules(t.TempDir()), os.ErrNotExist)
	for i, bad := range [][]Module{
		nil, {{"model.up.weight", []int{1}, value(1)}}, {{"lm_head", []int{1}, value(1)}}, {{"lm_head.weight", []int{2}, value(1)}},
		{modules[0], modules[0]}, {{"lm_head.weight", []int{1}, snug.SliceView([]uint8{1})}}, {{"", nil, snug.View{}}},
		{{"lm_head.weight", []int{1}, value(float32(math.NaN()))}},
	} {
		require.Error(t, SaveAdapters(filepath.Join(t.TempDir(), "new"), c, someAdapters(c), bad...), i)
	}
	c.ModulesToSave = nil
	require.ErrorIs(t, SaveAdapters(t.TempDir(), c, someAdapters(c)), snug.ErrConfig, "ensure_weight_tying without them")
	c.Other = nil
	require.ErrorIs(t, SaveAdapters(t.TempDir(), c, someAdapters(c), modules...), snug.ErrConfig)
	c.ModulesToSave = []string{""}
	require.ErrorIs(t, SaveAdapters(t.TempDir(), c, someAdapters(c), modules...), snug.ErrConfig)
}
