package transformer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

// TestTablesAgainstPEFT opens adapters that PEFT saved with an embedding or a head, and compares with what PEFT loads and
// merges, see testdata/tables.py. The merged folder, and the adapter when it is saved again, compute the same.
func TestTablesAgainstPEFT(t *testing.T) {
	dirs, err := filepath.Glob(filepath.Join("testdata", "tables", "*"))
	require.NoError(t, err)
	require.Len(t, dirs, 24)
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			var golden struct {
				Base   string
				Tokens []int32
				Vocab  int
				Tied   bool
			}
			text, err := os.ReadFile(filepath.Join(dir, "golden.json"))
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(text, &golden))
			w, err := amp.OpenWeights(filepath.Join(dir, "golden.safetensors"))
			require.NoError(t, err)
			want := make([]float32, len(golden.Tokens)*golden.Vocab)
			require.NoError(t, w.Load("logits", snug.ViewOf(want)))
			require.NoError(t, w.Close())
			compare := func(from string, o Options) *Model {
				o.DType = snug.F32
				m, err := Open(from, o)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, m.Close()) })
				c := m.Config()
				require.Equal(t, golden.Vocab, c.Vocab)
				require.Equal(t, golden.Tied, c.Tied)
				difference, largest := apart(allLogits(t, m, Batch{Tokens: golden.Tokens}), want)
				require.Less(t, difference, 1e-4*largest)
				return m
			}
			base := filepath.Join("testdata", "models", golden.Base)
			m := compare(base, Options{AdapterDir: dir})
			merged, again := filepath.Join(t.TempDir(), "merged"), filepath.Join(t.TempDir(), "again")
			require.NoError(t, m.Save(merged, 0))
			compare(merged, Options{})
			if golden.Base == "gpt2" && golden.Tied {
				return // whose tied embedding PEFT saves untied
			}
			if len(m.byModule) == 0 {
				require.ErrorContains(t, m.SaveAdapter(again), "the model has no adapters of matrices of its layers")
			} else {
				require.NoError(t, m.SaveAdapter(again))
				require.Empty(t, compare(base, Options{AdapterDir: again}).tables.adapters)
			}
			if !m.adapters.DoRA { // which does not go with paged matrices in floats
				store, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 1 << 16})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, store.Close()) })
				compare(base, Options{AdapterDir: dir, PageFloats: true, Pages: store})
			}
			quantized, err := Open(base, Options{DType: snug.F32, AdapterDir: dir, Base: qlora.INT8})
			require.NoError(t, err)
			difference, largest := apart(allLogits(t, quantized, Batch{Tokens: golden.Tokens}), want)
			require.Less(t, difference, 0.02*largest)
			require.NoError(t, quantized.Close())
		})
	}
}

// TestTableAdaptersRefused: adapters of an embedding or a head of other sizes, or that are missing, are refused with the remedy.
func TestTableAdaptersRefused(t *testing.T) {
	const embed, head, q = "base_model.model.model.embed_tokens", "base_model.model.lm_head", "base_model.model.model.layers.0.self_attn.q_proj"
	base := filepath.Join("testdata", "models", "llama")
	c, err := ReadConfig(base)
	require.NoError(t, err)
	vocab, dim := c.Vocab, c.Dim
	type shapes = map[string][]int
	adapter := func(module string, out, in int) shapes {
		if module == embed {
			return shapes{module + ".lora_embedding_A": {2, in}, module + ".lora_embedding_B": {out, 2}}
		}
		return shapes{module + ".lora_A.weight": {2, in}, module + ".lora_B.weight": {out, 2}}
	}
	for name, c := range map[string]struct {
		targets string
		tensors shapes
		class   error
		says    string
	}{
		"rows of an embedding":     {`"embed_tokens"`, adapter(embed, dim, vocab+5), snug.ErrShape, "save_embedding_layers=True"},
		"rows of a head":           {`"lm_head"`, adapter(head, vocab-1, dim), snug.ErrShape, "save_embedding_layers=True"},
		"elements of an embedding": {`"embed_tokens"`, adapter(embed, dim+1, vocab), snug.ErrShape, "is for rows of 33 elements, the model has 32"},
		"elements of a head":       {`"lm_head"`, adapter(head, vocab, dim+1), snug.ErrShape, "is for rows of 33 elements, the model has 32"},
		"an embedding as a linear layer": {`"embed_tokens"`, shapes{embed + ".lora_A.weight": {2, vocab}, embed + ".lora_B.weight": {dim, 2}}, snug.ErrConfig,
			"the adapter of model.embed_tokens is of an embedding: false, want true"},
		"a head as an embedding": {`"lm_head"`, shapes{head + ".lora_embedding_A": {2, dim}, head + ".lora_embedding_B": {vocab, 2}}, snug.ErrConfig,
			"the adapter of lm_head is of an embedding: true, want false"},
		"a target without adapter": {`"lm_head","embed_tokens"`, adapter(head, vocab, dim), snug.ErrCorrupt,
			"target_modules select model.embed_tokens, which has no adapter in the folder"},
		"a foreign prefix": {`"q_proj"`, shapes{"base_model.model.policy." + q[len("base_model.model."):] + ".lora_A.weight": {2, dim},
			"base_model.model.policy." + q[len("base_model.model."):] + ".lora_B.weight": {dim, 2}}, snug.ErrCorrupt,
			"target_modules select model.layers.0.self_attn.q_proj, which has no adapter in the folder; " +
				"the file has policy.model.layers.0.self_attn.q_proj, whose prefix is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "adapter_config.json"), []byte(`{"peft_type":"LORA","r":2,"lora_alpha":2,"target_modules":[`+c.targets+`]}`), 0o600))
			require.NoError(t, amp.SaveWeights(filepath.Join(dir, "adapter_model.safetensors"), func(yield func(amp.Tensor, snug.View) bool) {
				for tensor, shape := range c.tensors {
					if !yield(amp.Tensor{Name: tensor, Shape: shape}, snug.ViewOf(make([]float32, shape[0]*shape[1]))) {
						return
					}
				}
			}, nil))
			_, err := Open(base, Options{AdapterDir: dir})
			require.ErrorIs(t, err, c.class, name)
			require.ErrorContains(t, err, c.says, name)
		})
	}
}

// TestTableAdaptersRounded: what rounding takes from the sum of a table and its adapter counts as lost by merging.
func TestTableAdaptersRounded(t *testing.T) {
	dir := filepath.Join("testdata", "tables", "llama_adapted_embedding")
	for _, c := range []struct {
		dtype snug.DType
		loses bool
	}{{snug.F32, false}, {snug.BF16, true}} {
		m, err := Open(filepath.Join("testdata", "models", "llama"), Options{DType: c.dtype, AdapterDir: dir})
		require.NoError(t, err)
		require.NoError(t, m.Save(t.TempDir(), 0))
		lost := m.LostByMerging()
		require.EqualValues(t, m.table.Table.Len(), lost.Updates)
		require.Equal(t, c.loses, lost.Lost > 0, c.dtype)
		require.NoError(t, m.Close())
	}
}
