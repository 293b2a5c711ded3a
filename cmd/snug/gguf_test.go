package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/gguf"
)

// publishGGUF returns a model as a file of llama.cpp's, and the folder that it was written from.
func publishGGUF(t *testing.T, kind string) (path, dir string) {
	t.Helper()
	dir = publishBytes(t, turnsChat)
	path = filepath.Join(t.TempDir(), "model.gguf")
	status, _, errs := snugged("export", "-model", dir, "-gguf", path, "-type", kind)
	require.Zero(t, status, errs)
	return path, dir
}

// TestTuneGGUF tunes a file of llama.cpp's as it is, and gives the tuned model back in both forms: all that write the same answer.
func TestTuneGGUF(t *testing.T) {
	path, dir := publishGGUF(t, "q8_0")
	of, err := gguf.Open(path)
	require.NoError(t, err)
	tensor := of.Tensors()[2]
	require.NoError(t, of.Close())
	require.Contains(t, tensor.Name, "attn_q")
	require.Equal(t, gguf.Q8_0, tensor.Type)

	out := t.TempDir()
	tuned, merged, back := filepath.Join(out, "tuned"), filepath.Join(out, "merged"), filepath.Join(out, "back.gguf")
	data := chats(t, 40)
	status, text, errs := snugged("tune", "-model", path, "-data", data, "-compute", "f32", "-steps", "6", "-lr", "0.05", "-o", tuned)
	require.Zero(t, status, errs)
	require.Contains(t, text, "snug generate -model "+path+" -adapter "+tuned)
	description, err := os.ReadFile(filepath.Join(tuned, adapterConfig))
	require.NoError(t, err)
	var about struct {
		Base string `json:"base_model_name_or_path"`
	}
	require.NoError(t, json.Unmarshal(description, &about))
	require.Equal(t, path, about.Base)

	status, _, errs = snugged("merge", "-model", path, "-adapter", tuned, "-compute", "f32", "-o", merged)
	require.Zero(t, status, errs)
	for _, name := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		require.FileExists(t, filepath.Join(merged, name))
	}
	status, _, errs = snugged("export", "-model", path, "-adapter", tuned, "-gguf", back)
	require.Zero(t, status, errs)
	f, err := gguf.Open(back)
	require.NoError(t, err)
	defer f.Close()
	name, _ := f.Value("general.name")
	require.Equal(t, "tuned", name)
	template, _ := f.Value("tokenizer.chat_template")
	require.Equal(t, turnsChat, template)

	twice := filepath.Join(out, "twice.gguf")
	status, _, errs = snugged("export", "-model", path, "-adapter", tuned, "-adapter", tuned, "-gguf", twice)
	require.Zero(t, status, errs)
	second, err := gguf.Open(twice)
	require.NoError(t, err)
	defer second.Close()
	require.Equal(t, f.Tensors(), second.Tensors())

	answer := func(args ...string) string {
		status, text, errs := snugged(append([]string{"generate", "-compute", "f32", "-tokens", "8", "-prompt", "ab cd"}, args...)...)
		require.Zero(t, status, errs)
		return text
	}
	want := answer("-model", path, "-adapter", tuned)
	require.Equal(t, want, answer("-model", merged))
	require.Equal(t, want, answer("-model", path, "-adapter", tuned, "-memory", "500MiB"))
	require.Equal(t, want, answer("-model", back))
	require.Equal(t, strings.ReplaceAll(answer("-model", dir, "-adapter", tuned), " ", ""), want, "tokenizer.json there has no decoder")

	status, text, errs = snugged("inspect", "-sum", path)
	require.Zero(t, status, errs)
	require.Contains(t, text, "GGUF, 35 tensors")
	require.Contains(t, text, "general.architecture: \"llama\"")
	status, text, errs = snugged("plan", "-lora", "4", "-batch", "2", "-device", "8GB", path)
	require.Zero(t, status, errs)
	require.Contains(t, text, "frozen weights: 8.5 bits")
}

// TestGGUFRefused has flags that do not go with a file of llama.cpp's, and files that are no models.
func TestGGUFRefused(t *testing.T) {
	path, _ := publishGGUF(t, "q8_0")
	data, out := chats(t, 10), filepath.Join(t.TempDir(), "out")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	cut := filepath.Join(t.TempDir(), "cut.gguf")
	require.NoError(t, os.WriteFile(cut, text[:len(text)/2], 0o600))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"tune", "-model", cut, "-data", data, "-o", out}, cut},
		{[]string{"generate", "-model", cut, "-prompt", "a"}, cut},
		{[]string{"plan", cut}, cut},
		{[]string{"tune", "-model", path, "-data", data, "-o", out, "-for", "vllm"}, "wants the model as a folder"},
		{[]string{"generate", "-model", path, "-adapter", path, "-prompt", "a"}, `general.type is "model", want "adapter"`},
	} {
		status, _, errs := snugged(c.args...)
		require.NotZero(t, status, c.args)
		require.Contains(t, errs, c.want)
		require.NoFileExists(t, out)
	}
}
