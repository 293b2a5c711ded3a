package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// TestTokenizerOfTheAdapter: merge and generate take the tokenizer of the adapter where only that has the names of its tokens,
// and say which one they take where the two differ.
func TestTokenizerOfTheAdapter(t *testing.T) {
	model := publish(t)
	c, err := transformer.ReadConfig(model)
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(model, "tokenizer.json"))
	require.NoError(t, err)
	same := string(text)
	spaced := same + "\n"
	var tok map[string]any
	require.NoError(t, json.Unmarshal(text, &tok))
	added, _ := tok["added_tokens"].([]any)
	most := 0
	for _, id := range tok["model"].(map[string]any)["vocab"].(map[string]any) {
		most = max(most, int(id.(float64)))
	}
	for _, one := range added {
		most = max(most, int(one.(map[string]any)["id"].(float64)))
	}
	tok["added_tokens"] = append(added, map[string]any{"id": most + 1, "content": "<|added|>", "special": true, "single_word": false,
		"lstrip": false, "rstrip": false, "normalized": false})
	text, err = json.Marshal(tok)
	require.NoError(t, err)
	more := string(text)
	for name, test := range map[string]struct {
		tokenizer string // of the adapter
		rows      int    // of its vocabulary, beyond the model's
		note      string
		taken     string // what the output has
	}{
		"none":                     {"", 0, "", same},
		"none, more rows":          {"", 5, "there is no tokenizer: the output gets the model's, which has no names for the new rows", same},
		"the model's":              {same, 0, "", same},
		"another":                  {spaced, 0, "(tokenizer.json is another): the output gets the model's, because the vocabulary is the model's", same},
		"another, more rows":       {spaced, 5, "the output gets it, because its vocabulary has", spaced},
		"more tokens":              {more, 5, "the output gets it, because its vocabulary has", more},
		"more tokens, no new rows": {more, 0, "the output gets it, because it has 1 tokens that the model's does not have", more},
	} {
		t.Run(name, func(t *testing.T) {
			adapter := adapterOf(t, model, 0, qlora.AdapterOptions{})
			if test.rows > 0 {
				adapter = grownAdapter(t, c, test.rows)
			}
			if test.tokenizer != "" {
				for _, file := range []string{"tokenizer_config.json"} {
					text, err := os.ReadFile(filepath.Join(model, file))
					require.NoError(t, err)
					require.NoError(t, os.WriteFile(filepath.Join(adapter, file), text, 0o600))
				}
				require.NoError(t, os.WriteFile(filepath.Join(adapter, "tokenizer.json"), []byte(test.tokenizer), 0o600))
			}
			merged := filepath.Join(t.TempDir(), "merged")
			status, _, errs := snugged("merge", "-model", model, "-adapter", adapter, "-o", merged)
			require.Zero(t, status, errs)
			require.Contains(t, errs, test.note)
			require.Equal(t, test.note != "", strings.Contains(errs, "tokenizer"), errs)
			got, err := os.ReadFile(filepath.Join(merged, "tokenizer.json"))
			require.NoError(t, err)
			require.True(t, bytes.Equal([]byte(test.taken), got))
			status, _, errs = snugged("generate", "-model", model, "-adapter", adapter, "-prompt", "say q", "-tokens", "2", "-compute", "f32")
			require.Zero(t, status, errs)
			require.Contains(t, errs, strings.Replace(test.note, "the output gets", "the prompt and the answer are written with", 1))
		})
	}
}

// grownAdapter is an adapter with an embedding and a head of more rows.
func grownAdapter(t *testing.T, c *transformer.Config, more int) string {
	rows, in, out := c.Vocab+more, c.Dim, c.Heads*c.HeadDim
	values := make([]float32, rows*c.Dim)
	for i := range values {
		values[i] = float32(i%13-6) / 20
	}
	module := func(name string) qlora.Module {
		return qlora.Module{Name: name, Shape: []int{rows, c.Dim}, Value: snug.ViewOf(values)}
	}
	l := &qlora.LoRA{In: in, Out: out, Rank: 1, Scale: 1, A: snug.ViewOf(make([]float32, in)), B: snug.ViewOf(make([]float32, out))}
	adapter := filepath.Join(t.TempDir(), "adapter")
	o := qlora.AdapterOptions{Rank: 1, Alpha: 1, ModulesToSave: []string{"embed_tokens", "lm_head"}}
	require.NoError(t, qlora.SaveAdapters(adapter, o, map[string]*qlora.LoRA{"model.layers.0.self_attn.q_proj": l},
		module("model.embed_tokens.weight"), module("lm_head.weight")))
	return adapter
}

// TestUnreadFieldsOnce: merge and generate say once which fields of config.json change nothing, as tune does.
func TestUnreadFieldsOnce(t *testing.T) {
	model := publish(t)
	path := filepath.Join(model, "config.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var fields map[string]any
	require.NoError(t, json.Unmarshal(text, &fields))
	fields["use_qk_norm"] = true
	fields["_of_a_program"] = "x"
	text, err = json.Marshal(fields)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	adapter := adapterOf(t, model, 0, qlora.AdapterOptions{})
	for _, args := range [][]string{
		{"merge", "-model", model, "-adapter", adapter, "-o", filepath.Join(t.TempDir(), "merged")},
		{"generate", "-model", model, "-adapter", adapter, "-prompt", "say q", "-tokens", "2"},
	} {
		status, _, errs := snugged(args...)
		require.Zero(t, status, errs)
		require.Equal(t, 1, strings.Count(errs, "transformers does not read use_qk_norm for"), errs)
	}
}
