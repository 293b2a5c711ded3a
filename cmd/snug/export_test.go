package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/qlora"
)

// publishBytes is publish with a byte-level tokenizer, which llama.cpp knows, and a chat template.
func publishBytes(t *testing.T, template string) string {
	dir := publish(t)
	vocab := map[string]int{}
	for i, r := range letters {
		vocab[string(r)] = i + 3
	}
	special := func(id int, text string) any {
		return map[string]any{"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
	}
	for i, text := range []string{"<unk>", "<s>", "</s>"} {
		vocab[text] = i
	}
	write := func(name string, file any) {
		text, err := json.Marshal(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	write("tokenizer.json", map[string]any{
		"version": "1.0", "added_tokens": []any{special(1, "<s>"), special(2, "</s>")},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
		"post_processor": map[string]any{"type": "TemplateProcessing", "single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<s>", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}},
			"pair": []any{map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}, map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 1}}}, "special_tokens": map[string]any{"<s>": map[string]any{"id": "<s>", "ids": []int{1}, "tokens": []string{"<s>"}}}},
		"model": map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	})
	write("tokenizer_config.json", map[string]any{"bos_token": "<s>", "eos_token": "</s>", "chat_template": template})
	write("generation_config.json", map[string]any{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": nil, "eos_token_id": []int{2, 3}})
	return dir
}

const turnsChat = "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

func TestExportWritesAModelAndItsModelfile(t *testing.T) {
	model, out := publishBytes(t, turnsChat), t.TempDir()
	path, page := filepath.Join(out, "model.gguf"), filepath.Join(out, "Modelfile")
	status, text, errs := snugged("export", "-model", model, "-gguf", path, "-type", "q8_0", "-modelfile", page)
	require.Zero(t, status, errs)
	require.Contains(t, text, path+": ")
	f, err := gguf.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for key, want := range map[string]any{
		"general.architecture": "llama", "general.name": filepath.Base(model), "general.file_type": uint32(7), "llama.block_count": uint32(2), "tokenizer.ggml.model": "gpt2",
		"tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.bos_token_id": uint32(1), "tokenizer.ggml.eos_token_id": uint32(2), "tokenizer.ggml.eot_token_id": uint32(3),
		"tokenizer.ggml.add_bos_token": true, "tokenizer.chat_template": turnsChat,
	} {
		have, _ := f.Value(key)
		require.Equal(t, want, have, key)
	}
	written, err := os.ReadFile(page)
	require.NoError(t, err)
	require.Equal(t, `FROM ./model.gguf
TEMPLATE """{{ range .Messages }}{{ if eq .Role "system" }}<|im_start|>system
{{ .Content }}<|im_end|>
{{ end }}{{ if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ end }}{{ if eq .Role "assistant" }}<|im_start|>assistant
{{ .Content }}<|im_end|>
{{ end }}{{ end }}<|im_start|>assistant
"""
PARAMETER stop "</s>"
PARAMETER stop "a"
PARAMETER temperature 0.6
PARAMETER top_k 20
`, string(written))
}

// TestExportMergesAdapters exports with an adapter, and exports the merged model: the tensors are the same.
func TestExportMergesAdapters(t *testing.T) {
	model := publishBytes(t, turnsChat)
	one, other := adapterOf(t, model, 0.25, qlora.AdapterOptions{}), adapterOf(t, model, 1, qlora.AdapterOptions{})
	for name, adapters := range map[string][]string{"one": {"-adapter", one}, "several": {"-adapter", one, "-adapter", other}} {
		t.Run(name, func(t *testing.T) { exportsTheMerged(t, model, adapters) })
	}
}

func exportsTheMerged(t *testing.T, model string, adapters []string) {
	out := t.TempDir()
	for _, args := range [][]string{
		append([]string{"export", "-model", model, "-gguf", filepath.Join(out, "a.gguf")}, adapters...),
		append([]string{"merge", "-model", model, "-o", filepath.Join(out, "merged")}, adapters...),
		{"export", "-model", filepath.Join(out, "merged"), "-gguf", filepath.Join(out, "b.gguf"), "-type", "bf16"},
	} {
		status, _, errs := snugged(args...)
		require.Zero(t, status, errs)
	}
	a, err := gguf.Open(filepath.Join(out, "a.gguf"))
	require.NoError(t, err)
	defer a.Close()
	b, err := gguf.Open(filepath.Join(out, "b.gguf"))
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, a.Tensors(), b.Tensors())
	for _, tensor := range a.Tensors() {
		n, err := tensor.Bytes()
		require.NoError(t, err)
		x, y := make([]byte, n), make([]byte, n)
		require.NoError(t, a.ReadAt(tensor.Name, x, 0))
		require.NoError(t, b.ReadAt(tensor.Name, y, 0))
		require.Equal(t, x, y, tensor.Name)
	}
}

func TestExportRefusals(t *testing.T) {
	model, out := publishBytes(t, turnsChat), t.TempDir()
	there := filepath.Join(out, "there.gguf")
	require.NoError(t, os.WriteFile(there, []byte("x"), 0o600))
	path := filepath.Join(out, "new.gguf")
	for name, test := range map[string]struct {
		args []string
		text string
	}{
		"no model":            {[]string{"-gguf", path}, "want -model"},
		"no file":             {[]string{"-model", model}, "want -gguf"},
		"a file that exists":  {[]string{"-model", model, "-gguf", there}, "nothing is overwritten"},
		"no folder":           {[]string{"-model", model, "-gguf", filepath.Join(out, "none", "x.gguf")}, "no such file"},
		"one name for both":   {[]string{"-model", model, "-gguf", path, "-modelfile", path}, "both are"},
		"a type":              {[]string{"-model", model, "-gguf", path, "-type", "q3_k"}, "q4_k_m"},
		"compute without use": {[]string{"-model", model, "-gguf", path, "-compute", "f32"}, "-adapter"},
		"a tokenizer":         {[]string{"-model", publish(t), "-gguf", path}, "byte_fallback"},
		"a family":            {[]string{"-model", filepath.Join(filepath.Dir(published), "llama_dynamic"), "-gguf", path}, "dynamic"},
	} {
		t.Run(name, func(t *testing.T) {
			status, _, errs := snugged(append([]string{"export"}, test.args...)...)
			require.Equal(t, 2, status, errs)
			require.Contains(t, errs, test.text)
			entries, err := os.ReadDir(out)
			require.NoError(t, err)
			require.Len(t, entries, 1)
		})
	}
}

// TestModelfileTemplates makes templates for Ollama of chat templates of turns alone, and of no others.
func TestModelfileTemplates(t *testing.T) {
	for name, test := range map[string]struct{ template, want string }{
		"Llama 3": {
			"{{ bos_token }}{% for m in messages %}<|h|>{{ m.role }}<|e|>\n\n{{ m.content | trim }}<|eot|>{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|e|>\n\n{% endif %}",
			`{{ if eq .Role "user" }}<|h|>user<|e|>`,
		},
		"a system message of its own": {
			"{% if messages[0].role != 'system' %}<S>Be kind.</S>{% endif %}{% for m in messages %}{% if m.role == 'system' %}<S>{{ m.content }}</S>{% else %}<{{ m.role }}>{{ m.content }}</s>{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
			`{{ if not .System }}<S>Be kind.</S>{{ end }}{{ range .Messages }}{{ if eq .Role "system" }}<S>{{ .Content }}</S>{{ end }}`,
		},
		"no system messages": {
			"{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}]{{ m.content }}|{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
			`{{ range .Messages }}{{ if eq .Role "user" }}[user]{{ .Content }}|{{ end }}`,
		},
		"a system message in the first turn": {
			"{% for m in messages %}{% if m.role == 'system' %}{% elif m.role == 'user' %}[INST]{% if messages[0].role == 'system' and loop.index0 == 1 %}<<{{ messages[0].content }}>>{% endif %}{{ m.content }}[/INST]{% else %}{{ m.content }}</s>{% endif %}{% endfor %}",
			"# No TEMPLATE: ",
		},
		"a special token ends answers": {
			"{% for m in messages %}[{{ m.role }}]{{ m.content }}<s>{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}", "PARAMETER stop \"<s>\"\n",
		},
		"the date": {
			"{% for m in messages %}[{{ m.role }}]{{ m.content }}|{% endfor %}{{ strftime_now('%Y') }}{% if add_generation_prompt %}[assistant]{% endif %}", "# No TEMPLATE: the chat template has the date",
		},
		"thoughts that are left out": {
			"{% for m in messages %}<{{ m.role }}>{% if loop.last or m.role != 'assistant' %}{{ m.content }}{% endif %}</{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}", "# No TEMPLATE: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			out := t.TempDir()
			page := filepath.Join(out, "Modelfile")
			status, _, errs := snugged("export", "-model", publishBytes(t, test.template), "-gguf", filepath.Join(out, "x.gguf"), "-modelfile", page)
			require.Zero(t, status, errs)
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			require.Contains(t, string(text), test.want)
			require.Equal(t, strings.HasPrefix(test.want, "#"), !strings.Contains(string(text), "\nTEMPLATE "))
		})
	}
}

// TestExportDryRun: it says the size of the file, the memory and the room, and writes nothing.
func TestExportDryRun(t *testing.T) {
	model, out := publishBytes(t, turnsChat), t.TempDir()
	path := filepath.Join(out, "x.gguf")
	args := []string{"export", "-model", model, "-type", "mxfp4"}
	status, text, errs := snugged(append(args, "-dry-run")...)
	require.Zero(t, status, errs)
	require.Contains(t, errs, "snug: mxfp4 is for the matrices of experts, and the model has none: its matrices are q8_0\n")
	require.NotContains(t, text, "disk ")
	status, with, errs := snugged(append(args, "-dry-run", "-gguf", path)...)
	require.Zero(t, status, errs)
	require.Regexp(t, `(?m)^memory +\d.* predicted$`, with)
	require.Regexp(t, `(?m)^disk +\d.* free in `, with)
	entries, err := os.ReadDir(out)
	require.NoError(t, err)
	require.Empty(t, entries)
	status, written, errs := snugged(append(args, "-gguf", path)...)
	require.Zero(t, status, errs)
	_, size, _ := strings.Cut(strings.Split(written, ",")[0], path+": ")
	require.Contains(t, text, "output    "+size+"\n")
	require.Contains(t, with, "output    "+size+"\n")
	status, _, errs = snugged(append(args, "-gguf", filepath.Join(out, "y.gguf"), "-memory", "1MiB")...)
	require.Equal(t, 1, status)
	require.Regexp(t, `export: -memory 1.00 MiB: nothing fits: the process takes .* wants -memory \d+MiB`, errs)
	require.NoFileExists(t, filepath.Join(out, "y.gguf"))
	status, _, errs = snugged(append(args, "-gguf", filepath.Join(out, "y.gguf"), "-memory", wanted(t, errs))...)
	require.Zero(t, status, errs)
}
