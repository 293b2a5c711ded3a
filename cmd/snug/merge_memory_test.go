package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/qlora"
)

// TestMergeSeveralAdapters: adapters in a list give the files of merging one after the other, with a flag each, with commas, and from a
// file of -config.
func TestMergeSeveralAdapters(t *testing.T) {
	model := publish(t)
	a, b := adapterOf(t, model, 0.25, qlora.AdapterOptions{}), adapterOf(t, model, 1, qlora.AdapterOptions{DoRA: true})
	dir := t.TempDir()
	first, want := filepath.Join(dir, "first"), filepath.Join(dir, "want")
	for _, args := range [][]string{{"-model", model, "-adapter", a, "-o", first}, {"-model", first, "-adapter", b, "-o", want}} {
		status, _, errs := snugged(append([]string{"merge", "-compute", "f32"}, args...)...)
		require.Zero(t, status, errs)
	}
	config := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(config, []byte("adapter:\n- "+a+"\n- "+b+"\n"), 0o600))
	for name, args := range map[string][]string{
		"flags":  {"-adapter", a, "-adapter", b},
		"commas": {"-adapter", a + ", " + b},
		"file":   {"-config", config},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "merged")
			status, text, errs := snugged(append([]string{"merge", "-model", model, "-compute", "f32", "-o", out}, args...)...)
			require.Zero(t, status, errs)
			require.Contains(t, text, "with the adapters of "+a+" and "+b)
			for _, name := range []string{"model.safetensors", "config.json", "tokenizer.json"} {
				sameFile(t, filepath.Join(want, name), filepath.Join(out, name))
			}
		})
	}
	other := filepath.Join(t.TempDir(), "merged")
	status, _, errs := snugged("merge", "-model", model, "-adapter", b, "-adapter", a, "-compute", "f32", "-o", other)
	require.Zero(t, status, errs)
	x, err := os.ReadFile(filepath.Join(other, "model.safetensors"))
	require.NoError(t, err)
	y, err := os.ReadFile(filepath.Join(want, "model.safetensors"))
	require.NoError(t, err)
	require.NotEqual(t, x, y, "magnitudes do not commute with sums")
	for text, args := range map[string][]string{"want a name": {"-adapter", a + ","}, "no-such": {"-adapter", a, "-adapter", filepath.Join(dir, "no-such")}} {
		status, _, errs := snugged(append([]string{"merge", "-model", model, "-o", filepath.Join(dir, "x")}, args...)...)
		require.Equal(t, 2, status)
		require.Contains(t, errs, text)
	}
}

// TestMergeDryRunWritesNothing: it says the sizes and what is lost, with -o and without.
func TestMergeDryRunWritesNothing(t *testing.T) {
	model := publish(t)
	adapter := adapterOf(t, model, 1e-9, qlora.AdapterOptions{})
	out := filepath.Join(t.TempDir(), "merged")
	for _, more := range [][]string{nil, {"-o", out}, {"-memory", "2GiB"}} {
		status, text, errs := snugged(append([]string{"merge", "-model", model, "-adapter", adapter, "-compute", "bf16", "-dry-run"}, more...)...)
		require.Zero(t, status, errs)
		for _, want := range []string{`(?m)^output +\d.*with the adapter of `, `(?m)^largest +\d`, `(?m)^memory +\d.* predicted; `, `(?m)^time +\d`, `updates lost to rounding`} {
			require.Regexp(t, want, text)
		}
		require.Equal(t, more != nil && more[0] == "-o", strings.Contains(text, "\ndisk      "), text)
		require.NoDirExists(t, out)
	}
	full := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(full, "mine"), nil, 0o600))
	status, _, errs := snugged("merge", "-model", model, "-adapter", adapter, "-dry-run", "-o", full)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "nothing is overwritten")
	status, _, errs = snugged("merge", "-model", model, "-adapter", adapter)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "want -o")
}

// TestMergeMemoryRefused: a limit below what the process takes is refused before anything is written, and the limit that the message
// names is enough.
func TestMergeMemoryRefused(t *testing.T) {
	model := publish(t)
	adapter, out := adapterOf(t, model, 1, qlora.AdapterOptions{}), filepath.Join(t.TempDir(), "merged")
	status, _, errs := snugged("merge", "-model", model, "-adapter", adapter, "-memory", "1MiB", "-o", out)
	require.Equal(t, 1, status)
	require.Regexp(t, `merge: -memory 1.00 MiB: nothing fits: the process takes .* wants -memory \d+MiB`, errs)
	require.NoDirExists(t, out)
	status, text, errs := snugged("merge", "-model", model, "-adapter", adapter, "-memory", wanted(t, errs), "-o", out)
	require.Zero(t, status, errs)
	require.Contains(t, text, "peak RSS")
}

// wanted returns the limit that a message names, and some MiB for a process of tests, whose memory varies.
func wanted(t *testing.T, errs string) string {
	_, after, found := strings.Cut(errs, "wants -memory ")
	digits, _, isSize := strings.Cut(after, "MiB")
	n, err := strconv.Atoi(digits)
	require.True(t, found && isSize && err == nil, errs)
	return strconv.Itoa(n+16) + "MiB"
}

// TestGenerateWithinMemory: a limit that holds a part of the matrices gives the text of none, and one that is too low is refused.
func TestGenerateWithinMemory(t *testing.T) {
	model := publish(t)
	adapter := adapterOf(t, model, 0.25, qlora.AdapterOptions{})
	for _, more := range [][]string{nil, {"-adapter", adapter}, {"-base", "nf4"}, {"-temperature", "1"}} {
		args := append([]string{"generate", "-model", model, "-prompt", "say q", "-tokens", "6", "-compute", "f32"}, more...)
		status, want, errs := snugged(args...)
		require.Zero(t, status, errs)
		status, _, errs = snugged(append(args, "-memory", "1MiB")...)
		require.Equal(t, 2, status)
		require.Regexp(t, `generate: -memory 1.00 MiB: nothing fits: .* wants -memory \d+MiB`, errs)
		status, text, errs := snugged(append(args, "-memory", wanted(t, errs))...)
		require.Zero(t, status, errs)
		require.Equal(t, want, text)
	}
	for _, more := range [][]string{{"-image", "a.png"}, {"-device", "cuda:0"}} {
		status, _, errs := snugged(append([]string{"generate", "-model", model, "-prompt", "say q", "-memory", "1GiB"}, more...)...)
		require.Equal(t, 2, status)
		require.Contains(t, errs, "-memory is for prompts of text on the processor")
	}
	dora := adapterOf(t, model, 1, qlora.AdapterOptions{DoRA: true})
	status, _, errs := snugged("generate", "-model", model, "-prompt", "say q", "-memory", "1GiB", "-adapter", dora)
	require.Equal(t, 2, status)
	require.Contains(t, errs, "merge it into the model first")
}
