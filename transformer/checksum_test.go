package transformer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/safetensors"
)

// writeTensors writes a folder with shards, each a list of names and bytes of I8 tensors in order.
func writeTensors(t *testing.T, shards [][]string, data func(name string) []byte) string {
	t.Helper()
	dir, index := t.TempDir(), map[string]string{}
	for i, names := range shards {
		var list []safetensors.Tensor
		for _, name := range names {
			list = append(list, safetensors.Tensor{Name: name, DType: "I8", Shape: []int{len(data(name))}})
		}
		h, err := safetensors.New(list, nil)
		require.NoError(t, err)
		file, err := h.Bytes()
		require.NoError(t, err)
		for _, tensor := range h.Tensors {
			file = append(file, data(tensor.Name)...)
		}
		shard := safetensors.FileName
		if len(shards) > 1 {
			shard = safetensors.ShardName(i+1, len(shards))
		}
		for _, name := range names {
			index[name] = shard
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, shard), file, 0o600))
	}
	if len(shards) > 1 {
		text, err := (&safetensors.Index{Shards: index}).Bytes()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, safetensors.IndexName), text, 0o600))
	}
	config, err := os.ReadFile("testdata/models/llama/config.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600))
	return dir
}

// TestChecksumOfWeights: the checksum sees the ends of every tensor, and every element of a small model; names, types and
// shapes; and not how tensors are divided among files.
func TestChecksumOfWeights(t *testing.T) {
	const small, large = 3*blockBytes + 100, 3*sampleBlocks*blockBytes + 5 // 12 MiB, of which 4 are read
	one, two := [][]string{{"a", "b", "c"}}, [][]string{{"c", "a"}, {"b"}}
	made := func(n int, change int) func(name string) []byte {
		return func(name string) []byte {
			b := make([]byte, n)
			for i := range b {
				b[i] = byte(i*7) + name[0]
			}
			if name == "b" && change >= 0 {
				b[change]++
			}
			return b
		}
	}
	sum := func(shards [][]string, data func(name string) []byte) string {
		_, weights, err := Checksum(writeTensors(t, shards, data))
		require.NoError(t, err)
		require.Len(t, weights, 32)
		return weights
	}
	for _, n := range []int{small, large} {
		whole := sum(one, made(n, -1))
		require.Equal(t, whole, sum(two, made(n, -1)), "in two files")
		for _, at := range []int{0, blockBytes - 1, n - 1, n - 1 - (n-1)%blockBytes} {
			require.NotEqual(t, whole, sum(one, made(n, at)), "byte %d of %d", at, n)
		}
	}
	for _, at := range []int{blockBytes, small / 2, small - 101} {
		require.NotEqual(t, sum(one, made(small, -1)), sum(one, made(small, at)), "byte %d of a small model", at)
	}
	require.NotEqual(t, sum(one, made(small, -1)), sum([][]string{{"a", "c", "d"}}, made(small, -1)), "other names")

	// Of a large model a block in four is read.
	whole := sum([][]string{{"b"}}, made(large, -1))
	for _, block := range []int{0, 4, 8, 1000, 3000} {
		require.NotEqual(t, whole, sum([][]string{{"b"}}, made(large, block*blockBytes)), "block %d", block)
	}
}

// TestChecksumOfConfig: what changes a result changes the checksum, and a field that does not leaves it.
func TestChecksumOfConfig(t *testing.T) {
	data := func(string) []byte { return []byte("weights") }
	sum := func(change map[string]any) string {
		dir := writeTensors(t, [][]string{{"a"}}, data)
		path := filepath.Join(dir, "config.json")
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		fields := map[string]any{}
		require.NoError(t, json.Unmarshal(text, &fields))
		for name, value := range change {
			if fields[name] = value; value == nil {
				delete(fields, name)
			}
		}
		text, err = json.Marshal(fields)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, text, 0o600))
		config, weights, err := Checksum(dir)
		require.NoError(t, err, change)
		require.NotEmpty(t, weights)
		return config
	}
	whole := sum(nil)
	for _, c := range []struct {
		name  string
		value any
		same  bool
	}{
		{"rms_norm_eps", 1e-3, false},
		{"hidden_act", "gelu", false},
		{"num_key_value_heads", 1, false},
		{"rope_parameters", map[string]any{"rope_type": "default", "rope_theta": 77.0}, false},
		{"use_cache", false, true},
		{"initializer_range", 0.5, true},
		{"bos_token_id", 5, true},
		{"transformers_version", "4.0.0", true},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.same, whole == sum(map[string]any{c.name: c.value})) })
	}
	_, _, err := Checksum(t.TempDir())
	require.Error(t, err)
	_, _, err = Checksum("testdata/models/none")
	require.ErrorIs(t, err, os.ErrNotExist)
}
