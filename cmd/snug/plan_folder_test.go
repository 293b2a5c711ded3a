package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// published is a folder of Hugging Face with weights in two shards.
var published = filepath.Join("..", "..", "transformer", "testdata", "models", "llama")

// TestPlanOfFolder: the plan of a folder and of its config.json alone are the same, under the
// folder's name, and the context that was assumed is said.
func TestPlanOfFolder(t *testing.T) {
	const assumed = "sequences of 64 tokens are assumed, as no -context is given; the model is made for 64\n\n"
	status, whole, errs := snugged("plan", "-device", "8GB", published)
	require.Zero(t, status, errs)
	require.True(t, strings.HasPrefix(whole, assumed+"llama, 19040 parameters, on 8GB: 8 sequences of 64 tokens a step"), whole)
	require.Regexp(t, `\n\na process that trains so on the CPU takes about [0-9.]+ MiB of resident memory on [0-9]+ cores?\n$`, whole)
	status, alone, errs := snugged("plan", "-device", "8GB", filepath.Join(published, "config.json"))
	require.Zero(t, status, errs)
	require.Equal(t, whole, alone)

	for context, wasAssumed := range map[string]bool{"": true, "64": false, "4096": false} {
		t.Run(context, func(t *testing.T) {
			args := []string{"plan", "-json", "-lora", "4", "-base", "nf4", "-device-memory", "1GiB", "-host-memory", "1GiB", "-disk", "1GiB"}
			if context != "" {
				args = append(args, "-context", context)
			}
			status, out, errs := snugged(append(args, published)...)
			require.Zero(t, status, errs)
			var r planJSON
			require.NoError(t, json.Unmarshal([]byte(out), &r))
			require.Equal(t, wasAssumed, r.ContextAssumed)
			require.Equal(t, 4, r.Run.Frozen)
			require.Empty(t, r.Run.Masters)
			require.True(t, r.Run.Tiled)
			require.Greater(t, r.Process, r.Peak["device"]["total"]-r.Peak["device"]["allowance"])
			require.Equal(t, map[string]int{"": 64, "64": 64, "4096": 4096}[context], r.Context)
		})
	}
}

// TestBadFolders: what cannot be planned is one line that names the file or the field, and
// exit status 2.
func TestBadFolders(t *testing.T) {
	config, err := os.ReadFile(filepath.Join(published, "config.json"))
	require.NoError(t, err)
	folder := func(name, text string, links ...string) string {
		dir := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.Mkdir(dir, 0o777))
		if text != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(text), 0o666))
		}
		for _, link := range links {
			text, err := os.ReadFile(filepath.Join(published, link))
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, link), text, 0o666))
		}
		return dir
	}
	const index, shard = "model.safetensors.index.json", "model-00001-of-00002.safetensors"
	wider := strings.Replace(string(config), `"intermediate_size": 40`, `"intermediate_size": 48`, 1)
	require.NotEqual(t, string(config), wider)
	for want, args := range map[string][]string{
		"no such file":          {filepath.Join(t.TempDir(), "nowhere")},
		"has no config.json":    {folder("empty", "")},
		"want an object":        {folder("list", "[]")},
		"model_type":            {folder("bert", `{"model_type": "bert"}`)},
		"want 1 to":             {"-context", "2147483647", published},
		"the model has 32":      {"-context", "33", filepath.Join(filepath.Dir(published), "gpt2")},
		"one of the two":        {"-model", "gpt2", published},
		"unexpected argument":   {published, published},
		"flags come first":      {published, "-memory", "6GiB"},
		"of another shape":      {folder("wider", wider, index, shard, "model-00002-of-00002.safetensors")},
		"00002-of-00002":        {folder("half", string(config), index, shard)},
		"want a folder with":    {},
		"not a JSON":            {folder("truncated", string(config[:40]))},
		"-dora is for adapters": {"-dora", published},
		"want lora":             {"-lora", "4", "-adapter", "more", published},
		"-context -3: want 1 ":  {"-context", "-3", published},
	} {
		t.Run(want, func(t *testing.T) {
			status, out, errs := snugged(append([]string{"plan"}, args...)...)
			require.Equal(t, 2, status, "%s: %s", want, errs)
			require.Empty(t, out)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			if want != "want an object" && want != "not a JSON" {
				require.Contains(t, errs, want)
			}
			requireNoKind(t, errs)
		})
	}
}

// TestFolderNames: a plan has the folder's name where it can be printed.
func TestFolderNames(t *testing.T) {
	for path, want := range map[string]string{
		published: "llama", filepath.Join(published, "config.json"): "llama", "/": "family", filepath.Join(published, ".."): "models",
		"/a\x1b[2Jb": "family", "/" + strings.Repeat("n", 81): "family", "/Qwen3-0.6B/": "Qwen3-0.6B",
	} {
		require.Equal(t, want, folderName(path, "family"), "%q", path)
	}
}

// A preset that sees images is a folder without weights.
func TestPlanModelOfImages(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	status, stdout, stderr := snugged("plan", "-model", "qwen3-vl-8b", "-lora", "16", "-batch", "8", "-device", "16GB", "-context", "512", "-pixels", "448,1024")
	require.Zero(t, status, stderr)
	require.Contains(t, stdout, "qwen3-vl-8b, 8190735360 parameters")
	require.Contains(t, stdout, " 448 px: 196 tokens of an image; ")
	require.Regexp(t, `1024 px: 1024 tokens of an image; 1[345]\.\d+ GiB on the device; micro-batch 1,`, stdout)
	left, err := filepath.Glob(filepath.Join(os.TempDir(), "snug-plan-*"))
	require.NoError(t, err)
	require.Empty(t, left, "the folder is removed")
}
