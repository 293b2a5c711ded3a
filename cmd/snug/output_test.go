package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a killed process left in its output gives way to the next run; what a user put there does not.
func TestOutputTaken(t *testing.T) {
	put := func(dir string, names ...string) {
		for _, name := range names {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
		}
	}
	model, data := publish(t), chats(t, 9)
	args := func(out string) []string {
		return []string{"tune", "-model", model, "-data", data, "-lora", "1", "-steps", "1", "-o", out}
	}
	left := t.TempDir()
	put(left, unfinished, "adapter_model.safetensors.123.tmp", "adapter_model.safetensors", "adapter_config.json.next", "model-00001-of-00002.safetensors", "tokenizer.json")
	require.NoError(t, os.Mkdir(filepath.Join(left, moreTemplates), 0o700))
	put(left, moreTemplates+"/rag.jinja")
	status, _, errs := snugged(args(left)...)
	require.Zero(t, status, errs)
	require.Contains(t, errs, "left 6 files in "+left+", which are removed")
	entries, err := os.ReadDir(left)
	require.NoError(t, err)
	require.Len(t, entries, 2, "the adapter and its description")

	for _, names := range [][]string{{unfinished, "thesis.txt"}, {"adapter_model.safetensors"}, {"adapter_model.safetensors.123.tmp"}} {
		t.Run(strings.Join(names, " "), func(t *testing.T) {
			dir := t.TempDir()
			put(dir, names...)
			status, out, errs := snugged(args(dir)...)
			require.Equal(t, 2, status)
			require.Contains(t, errs, "is not empty")
			require.Empty(t, out)
			for _, name := range names {
				require.FileExists(t, filepath.Join(dir, name))
			}
		})
	}
}

// One process at a time writes an output, and one that fails leaves nothing.
func TestOutputAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	first, err := takeOutput(dir)
	require.NoError(t, err)
	status, _, errs := snugged("tune", "-model", publish(t), "-data", chats(t, 9), "-lora", "1", "-steps", "1", "-o", dir)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "it is in use")
	require.DirExists(t, dir)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), nil, 0o600))
	require.NoError(t, first.drop())
	require.NoDirExists(t, filepath.Dir(dir))

	whole, err := takeOutput(dir)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), nil, 0o600))
	require.NoError(t, whole.finish())
	require.NoError(t, whole.drop())
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}

// An output that cannot be written is refused before the first step.
func TestOutputRefused(t *testing.T) {
	model, data, dir := publish(t), chats(t, 9), t.TempDir()
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(filepath.Join(dir, "nothing"), link))
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	out := filepath.Join(dir, "out")
	inner := filepath.Join(dir, "inner")
	require.NoError(t, os.Symlink(dir, inner))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"is a link to nothing", []string{"-o", link}},
		{"not a directory", []string{"-o", filepath.Join(file, "out")}},
		{"is in -o", []string{"-o", out, "-checkpoint", out}},
		{"is in -o", []string{"-o", out, "-checkpoint", filepath.Join(inner, "out", "saved")}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			status, stdout, errs := snugged(append([]string{"tune", "-model", model, "-data", data, "-lora", "1", "-steps", "1"}, c.args...)...)
			require.Equal(t, 2, status, errs)
			require.Contains(t, errs, c.want)
			require.NotContains(t, stdout, "step")
		})
	}
	require.NoDirExists(t, out)
}

// The whole result of a run that was killed before it took the mark away stays, and the next run says where it is.
func TestResultsAreKept(t *testing.T) {
	model, data := publish(t), chats(t, 9)
	for what, flags := range map[string][]string{"the adapter": {"-lora", "1"}, "the weights": {"-full"}} {
		out := filepath.Join(t.TempDir(), "out")
		args := append([]string{"tune", "-model", model, "-data", data, "-steps", "1", "-o", out}, flags...)
		status, _, errs := snugged(args...)
		require.Zero(t, status, errs)
		mark := filepath.Join(out, unfinished)
		require.NoError(t, os.WriteFile(mark, nil, 0o600))
		before, err := os.ReadDir(out)
		require.NoError(t, err)
		for _, again := range [][]string{args, {"merge", "-model", model, "-adapter", model, "-o", out}} {
			status, stdout, errs := snugged(again...)
			require.Equal(t, 2, status)
			require.Contains(t, errs, out+" has "+what+" of a run that was stopped as it ended, and nothing is overwritten: to keep this result, remove "+mark)
			require.Empty(t, stdout)
		}
		after, err := os.ReadDir(out)
		require.NoError(t, err)
		require.Len(t, after, len(before))
		require.NoError(t, os.Remove(mark))
		use := []string{"generate", "-model", model, "-adapter", out, "-prompt", "a", "-tokens", "1"}
		if what == "the weights" {
			use = []string{"generate", "-model", out, "-prompt", "a", "-tokens", "1"}
		}
		status, _, errs = snugged(use...)
		require.Zero(t, status, errs)
	}
}
