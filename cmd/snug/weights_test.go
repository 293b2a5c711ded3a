package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/safetensors"
	"github.com/stretchr/testify/require"
)

// shardFolder writes a folder of two shards.
func shardFolder(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, amp.SaveShards(dir, 8, func(yield func(amp.Tensor, snug.View) bool) {
		_ = yield(amp.Tensor{Name: "a", Shape: []int{2}}, snug.ViewOf([]float32{1, 2})) &&
			yield(amp.Tensor{Name: "b", Shape: []int{1, 2}, DType: "BF16"}, snug.ViewOf([]float32{3, 4}))
	}, map[string]string{"format": "pt"}))
	return dir
}

func TestInspectShards(t *testing.T) {
	dir := shardFolder(t)
	for _, path := range []string{dir, filepath.Join(dir, safetensors.IndexName)} {
		status, out, errs := snugged("inspect", "-sum", path)
		require.Zero(t, status, errs)
		for _, want := range []string{"safetensors, 2 tensors in 2 files", `format: "pt"`, "BF16"} {
			require.Contains(t, out, want)
		}
		status, out, _ = snugged("inspect", "-json", path)
		require.Zero(t, status)
		require.Contains(t, out, `"file": "`+safetensors.ShardName(2, 2)+`"`)
	}
	require.NoError(t, os.Truncate(filepath.Join(dir, safetensors.ShardName(1, 2)), 20))
	status, _, errs := snugged("inspect", dir)
	require.Equal(t, 1, status)
	require.Contains(t, errs, safetensors.ShardName(1, 2))
	status, _, errs = snugged("inspect", t.TempDir())
	require.Equal(t, 1, status)
	require.NotContains(t, errs, "safetensors")
}

func TestVerifyShards(t *testing.T) {
	dir := shardFolder(t)
	status, out, errs := snugged("verify", dir)
	require.Zero(t, status, errs)
	require.Equal(t, 3, strings.Count(out, "ok\t"), out)
	index := filepath.Join(dir, safetensors.IndexName)
	status, out, _ = snugged("verify", index)
	require.Zero(t, status)
	require.Equal(t, 1, strings.Count(out, "ok\t"), out)

	require.NoError(t, os.Rename(filepath.Join(dir, safetensors.ShardName(1, 2)), filepath.Join(dir, "other.safetensors")))
	status, out, _ = snugged("verify", "-q", dir)
	require.Equal(t, 1, status)
	require.Equal(t, 1, strings.Count(out, "damaged\t"), out)
	require.Contains(t, out, "the shard "+safetensors.ShardName(1, 2)+" is missing")
	require.NoError(t, os.Remove(index))
	status, out, _ = snugged("verify", "-q", dir)
	require.Equal(t, 1, status)
	require.Contains(t, out, "damaged\t"+dir+"\t")
	require.Contains(t, out, "no "+safetensors.IndexName)
}

// The folder of an adapter is listed as tune writes it, and other folders are named for what they lack.
func TestInspectAdapter(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	status, _, errs := snugged("tune", "-model", publish(t), "-data", chats(t, 9), "-o", out, "-lora", "2", "-steps", "1")
	require.Zero(t, status, errs)
	status, listed, errs := snugged("inspect", out)
	require.Zero(t, status, errs)
	require.Contains(t, listed, "safetensors, an adapter of")
	require.Contains(t, listed, "  r: 2\n")
	require.Contains(t, listed, "q_proj.lora_A.weight")
	status, listed, errs = snugged("inspect", "-json", out)
	require.Zero(t, status, errs)
	require.Contains(t, listed, `"lora_alpha": 4`)

	require.NoError(t, os.WriteFile(filepath.Join(out, adapterConfig), []byte("{"), 0o600))
	status, _, errs = snugged("inspect", out)
	require.Equal(t, 1, status)
	require.Contains(t, errs, "adapter_config.json is no JSON")
	status, _, errs = snugged("inspect", t.TempDir())
	require.Equal(t, 1, status)
	require.Contains(t, errs, "the folder has no weights, no adapter, no checkpoint and no store")
}
