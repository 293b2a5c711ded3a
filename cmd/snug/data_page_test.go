package main

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/dataset"
)

// chatML is a template of the shape of Qwen's.
const chatML = `{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Functions:
{%- for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% elif messages and messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' and loop.first %}
{%- elif m.role == 'assistant' %}<|im_start|>assistant
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// chatModel is the folder of a model with a tokenizer of the shape of Qwen's and a chat template, and without weights.
func chatModel(t testing.TB, template string) string {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Open(filepath.Join("..", "..", "tokenizer", "testdata", "qwen", "tokenizer.json.gz"))
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	tok, err := io.ReadAll(z)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), tok, 0o600))
	for name, v := range map[string]any{
		"tokenizer_config.json": map[string]any{"eos_token": "<|im_end|>", "chat_template": template},
		"config.json": map[string]any{"architectures": []string{"Qwen3ForCausalLM"}, "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
			"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
			"tie_word_embeddings": true, "vocab_size": 8005, "attention_bias": false, "torch_dtype": "bfloat16", "eos_token_id": 8002},
	} {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// TestDataPage: docs/data.md has every form, and shows what snug tune -show prints for each example; its tables are those of
// package dataset. UPDATE=1 writes them.
func TestDataPage(t *testing.T) {
	const name = "data.md"
	page := readGuide(t, name)
	model, written := chatModel(t, chatML), page
	for _, form := range dataset.Forms() {
		_, section, found := strings.Cut(page, "(`"+form.Name+"`")
		require.True(t, found, form.Name)
		section, _, _ = strings.Cut(section, "\n## ")
		flags := []string{}
		if form.Pairs {
			flags = []string{"-dpo", "0.1"}
		}
		require.Contains(t, section, "```json\n", form.Name)
		for {
			_, rest, found := strings.Cut(section, "```json\n")
			if !found {
				break
			}
			lines, rest, _ := strings.Cut(rest, "```\n")
			_, rest, found = strings.Cut(rest, "```text\n")
			require.True(t, found, form.Name)
			shown, rest, _ := strings.Cut(rest, "```\n")
			section = rest
			require.Equal(t, 3, strings.Count(lines, "\n"), form.Name)
			data := filepath.Join(t.TempDir(), "data.jsonl")
			require.NoError(t, os.WriteFile(data, []byte(lines), 0o600))
			status, out, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-show", "1"}, flags...)...)
			require.Zero(t, status, errs)
			_, out, _ = strings.Cut(out, "\n") // how many samples there are
			out = strings.ReplaceAll(strings.ReplaceAll(out, filepath.Dir(data)+string(filepath.Separator), ""), "      data.jsonl: ", "data.jsonl: ")
			out = strings.TrimRight(out, "\n") + "\n"
			require.Contains(t, out, "data.jsonl: read as "+form.Title)
			if os.Getenv("UPDATE") == "" {
				require.Equal(t, out, shown, form.Name)
			}
			written = strings.Replace(written, lines+"```\n\n```text\n"+shown+"```\n", lines+"```\n\n```text\n"+out+"```\n", 1)
		}
	}
	rows, members := dataset.KnownFields()
	for _, table := range []struct {
		head string
		list []dataset.KnownField
	}{{"| field | what is done |\n|---|---|\n", rows}, {"| member | what is done |\n|---|---|\n", members}} {
		before, rest, found := strings.Cut(written, table.head)
		require.True(t, found)
		have, after, found := strings.Cut(rest, "\n\n")
		require.True(t, found)
		var want []string
		for _, f := range table.list {
			want = append(want, fmt.Sprintf("| `%s` | %s |", strings.Join(f.Names, "`, `"), f.About))
		}
		if os.Getenv("UPDATE") == "" {
			require.Equal(t, strings.Join(want, "\n"), have)
		}
		written = before + table.head + strings.Join(want, "\n") + "\n\n" + after
	}
	if os.Getenv("UPDATE") != "" {
		require.NoError(t, os.WriteFile(filepath.Join("..", "..", "docs", name), []byte(written), 0o666))
	}
}
