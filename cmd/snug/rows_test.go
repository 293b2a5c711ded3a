package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// withTokens adds tokens to the tokenizer of a folder, of which the last has the id 48, for which the model has no row.
func withTokens(t *testing.T, dir, last string) {
	t.Helper()
	path := filepath.Join(dir, "tokenizer.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var file map[string]any
	require.NoError(t, json.Unmarshal(text, &file))
	added := file["added_tokens"].([]any)
	for id := 3 + len(letters); id <= 48; id++ {
		name := fmt.Sprintf("<unused%d>", id)
		if id == 48 {
			name = last
		}
		added = append(added, map[string]any{"id": id, "content": name, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
	}
	file["added_tokens"] = added
	text, err = json.Marshal(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
}

// TestMoreTokensThanRows: a tokenizer with more tokens than the embedding has rows is accepted, and the first text that has
// such a token is refused by its name and id: in data, written by the template, in a prompt, and at the end of texts.
func TestMoreTokensThanRows(t *testing.T) {
	model := publish(t)
	withTokens(t, model, "<image_soft_token>")
	want := `the token "<image_soft_token>" with id 48, and the model's embedding has 48 rows`
	status, _, errs := snugged("tune", "-model", model, "-data", chats(t, 8), "-dry-run")
	require.Zero(t, status, errs)
	status, _, errs = snugged("generate", "-model", model, "-prompt", "say q", "-tokens", "2")
	require.Zero(t, status, errs)

	bad := filepath.Join(t.TempDir(), "bad.jsonl")
	require.NoError(t, os.WriteFile(bad, []byte(`{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`+"\n"+
		`{"messages": [{"role": "user", "content": "see <image_soft_token>"}, {"role": "assistant", "content": "b"}]}`+"\n"), 0o600))
	status, _, errs = snugged("tune", "-model", model, "-data", bad, "-dry-run")
	require.Equal(t, 2, status, errs)
	require.Contains(t, errs, want)
	require.Contains(t, errs, "bad.jsonl")
	status, _, errs = snugged("generate", "-model", model, "-prompt", "see <image_soft_token>", "-tokens", "2")
	require.Equal(t, 2, status, errs)
	require.Contains(t, errs, want)

	writes := publish(t)
	withTokens(t, writes, "<image_soft_token>")
	require.NoError(t, os.WriteFile(filepath.Join(writes, "chat_template.jinja"), []byte("{% for m in messages %}<image_soft_token>{{ m.content }}</s>{% endfor %}"), 0o600))
	for _, args := range [][]string{{"tune", "-model", writes, "-data", chats(t, 8), "-dry-run"}, {"generate", "-model", writes, "-prompt", "a", "-tokens", "2"}} {
		status, _, errs = snugged(args...)
		require.Equal(t, 2, status, errs)
		require.Contains(t, errs, want)
	}

	text := filepath.Join(t.TempDir(), "bad.txt")
	require.NoError(t, os.WriteFile(text, []byte("see <image_soft_token>"), 0o600))
	status, _, errs = snugged("tune", "-model", model, "-data", text, "-dry-run")
	require.Equal(t, 2, status, errs)
	require.Contains(t, errs, want)

	ends := publish(t)
	withTokens(t, ends, "<end>")
	require.NoError(t, os.WriteFile(filepath.Join(ends, "tokenizer_config.json"), []byte(`{"eos_token": "<end>"}`), 0o600))
	status, _, errs = snugged("tune", "-model", ends, "-data", chats(t, 8), "-dry-run")
	require.Equal(t, 2, status, errs)
	require.Contains(t, errs, `the token "<end>", which ends a text, has the id 48, and the model's embedding has 48 rows`)
}

// TestTemplateNames: a folder whose templates cannot be used is not taken for one without a template.
func TestTemplateNames(t *testing.T) {
	for _, c := range []struct{ name, file, text, want string }{
		{"no default", "tokenizer_config.json", `{"eos_token": "</s>", "chat_template": [{"name": "tool_use", "template": "a"}, {"name": "rag", "template": "b"}]}`,
			`no chat template of the name default, it has ["rag" "tool_use"]: choose one by its name (-template), or save it as chat_template.jinja`},
		{"a tag that is not known", "chat_template.jinja", "a\n{% include 'x' %}", `line 2: the tag "include" is not known`},
		{"a damaged chat_template.json", "chat_template.json", `{"chat_template": 7}`, "chat_template.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			model := publish(t)
			if c.file == "chat_template.json" {
				require.NoError(t, os.WriteFile(filepath.Join(model, "tokenizer_config.json"), []byte(`{"eos_token": "</s>"}`), 0o600))
			}
			require.NoError(t, os.WriteFile(filepath.Join(model, c.file), []byte(c.text), 0o600))
			for _, args := range [][]string{{"tune", "-model", model, "-data", chats(t, 8), "-dry-run"}, {"generate", "-model", model, "-prompt", "a", "-tokens", "2"}} {
				status, _, errs := snugged(args...)
				require.Equal(t, 2, status, errs)
				require.Contains(t, errs, c.want)
			}
			if c.file != "chat_template.json" {
				status, _, errs := snugged("generate", "-model", model, "-prompt", "a", "-plain", "-tokens", "2")
				require.Zero(t, status, errs)
			}
		})
	}
	model := publish(t)
	require.NoError(t, os.WriteFile(filepath.Join(model, "tokenizer_config.json"), []byte(`{"eos_token": "</s>"}`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(model, "chat_template.json"), []byte(`{"chat_template": "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"}`), 0o600))
	status, _, errs := snugged("generate", "-model", model, "-prompt", "abc", "-tokens", "2")
	require.Zero(t, status, errs)
	require.True(t, strings.Contains(errs, "4 tokens of a prompt"), errs)
}

// TestTemplateFlag: -template chooses one of the model's chat templates, and a line says which one is used.
func TestTemplateFlag(t *testing.T) {
	const others = "others have the names rag, tool_use (-template)"
	model := publish(t)
	list := []map[string]string{}
	for _, name := range []string{"default", "rag", "tool_use"} {
		list = append(list, map[string]string{"name": name, "template": "{% for m in messages %}" + name[:1] + "{{ m.content }}{{ eos_token if m.role == 'assistant' }}{% endfor %}"})
	}
	text, err := json.Marshal(map[string]any{"eos_token": "</s>", "chat_template": list})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(model, "tokenizer_config.json"), text, 0o600))
	turns := `"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}` + "\n"
	data := dataFile(t, "a.jsonl", "{"+turns+`{"tools": [{"name": "f"}], `+turns)
	for _, c := range []struct {
		name  string
		args  []string
		said  string
		shown []string
	}{
		{"none", nil, "chat template: default, with tools tool_use; ", []string{"da⟦db", "ta⟦tb"}},
		{"default", []string{"-template", "default"}, "chat template: default; ", []string{"da⟦db", "da⟦db"}},
		{"another", []string{"-template", "rag"}, "chat template: rag; ", []string{"ra⟦rb", "ra⟦rb"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, out, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-held-out", "0", "-show", "2"}, c.args...)...)
			require.Zero(t, status, errs)
			require.Contains(t, out, c.said+others)
			for _, want := range c.shown {
				require.Contains(t, out, want, out)
			}
			status, _, errs = snugged(append([]string{"generate", "-model", model, "-prompt", "a", "-tokens", "1"}, c.args...)...)
			require.Zero(t, status, errs)
			require.Contains(t, errs, "snug: "+c.said+others)
		})
	}
	for _, args := range [][]string{{"tune", "-model", model, "-data", data, "-show", "1", "-template", "rga"}, {"generate", "-model", model, "-prompt", "a", "-template", "rga"}} {
		status, _, errs := snugged(args...)
		require.Equal(t, 2, status)
		require.Contains(t, errs, `the tokenizer has no chat template "rga", it has ["default" "rag" "tool_use"]`)
	}
	require.NoError(t, os.WriteFile(filepath.Join(model, "tokenizer_config.json"), []byte(`{"eos_token": "</s>"}`), 0o600))
	status, _, errs := snugged("tune", "-model", model, "-data", data, "-show", "1", "-template", "rag")
	require.Equal(t, 2, status)
	require.Contains(t, errs, "the tokenizer has no chat template\n")
}
