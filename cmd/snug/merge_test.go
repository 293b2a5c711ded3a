package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// adapterOf writes an adapter of rank 1 that adds delta to each element of one matrix of a model.
func adapterOf(t *testing.T, model string, delta float32, o qlora.AdapterOptions) string {
	c, err := transformer.ReadConfig(model)
	require.NoError(t, err)
	in, out := c.Dim, c.Heads*c.HeadDim
	a, b := make([]float32, in), make([]float32, out)
	for i := range a {
		a[i] = 1
	}
	for i := range b {
		b[i] = delta
	}
	l := &qlora.LoRA{In: in, Out: out, Rank: 1, Scale: 1, A: snug.ViewOf(a), B: snug.ViewOf(b)}
	if o.DoRA {
		m := make([]float32, out)
		for i := range m {
			m[i] = 1e6
		}
		l.Magnitude = snug.ViewOf(m)
	}
	o.Rank, o.Alpha = 1, 1
	dir := filepath.Join(t.TempDir(), "adapter")
	require.NoError(t, qlora.SaveAdapters(dir, o, map[string]*qlora.LoRA{"model.layers.1.self_attn.q_proj": l}))
	return dir
}

// TestMergeOverflows merges sums that the type cannot hold. Nothing of the output is left.
func TestMergeOverflows(t *testing.T) {
	model := publish(t)
	for name, test := range map[string]struct {
		delta float32
		o     qlora.AdapterOptions
		flags []string
		text  string
	}{
		"float16":                 {70000, qlora.AdapterOptions{}, []string{"-compute", "f16"}, "f16 goes up to 65504"},
		"float16 on nf4":          {70000, qlora.AdapterOptions{}, []string{"-compute", "f16", "-base", "nf4"}, "f16 goes up to 65504"},
		"float16 with magnitudes": {1, qlora.AdapterOptions{DoRA: true}, []string{"-compute", "f16"}, "f16 goes up to 65504"},
		"bfloat16":                {3.4e38, qlora.AdapterOptions{}, []string{"-compute", "bf16"}, "bf16 goes up to 3.38"},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "merged")
			status, _, errs := snugged(append([]string{"merge", "-model", model, "-adapter", adapterOf(t, model, test.delta, test.o), "-o", out}, test.flags...)...)
			require.Equal(t, 1, status)
			require.Contains(t, errs, "model.layers.1.self_attn.q_proj.weight")
			require.Contains(t, errs, test.text)
			require.NoDirExists(t, out)
		})
	}
}

// TestMergeSaysWhatRoundingLoses merges a change that bfloat16 cannot hold, and float32 can.
func TestMergeSaysWhatRoundingLoses(t *testing.T) {
	model := publish(t)
	adapter := adapterOf(t, model, 1e-9, qlora.AdapterOptions{})
	out := filepath.Join(t.TempDir(), "merged")
	status, text, errs := snugged("merge", "-model", model, "-adapter", adapter, "-compute", "bf16", "-o", out)
	require.Zero(t, status, errs)
	require.Regexp(t, `(?m)^\d+ of \d+ updates lost to rounding, (9\d|100)\.\d+ % of their norm`, text)
	require.Contains(t, text, "-compute f32 keeps them")
	status, text, errs = snugged("merge", "-model", model, "-adapter", adapterOf(t, model, 0.5, qlora.AdapterOptions{}), "-compute", "f32", "-o", out+"2")
	require.Zero(t, status, errs)
	require.NotContains(t, text, "lost to rounding")
}

// TestAdapterGrowsTheVocabulary merges an adapter whose embedding and head have more rows than the model's, and generates with
// both. The merged config.json has the new size; the tokenizer's files are the model's.
func TestAdapterGrowsTheVocabulary(t *testing.T) {
	model := publish(t)
	c, err := transformer.ReadConfig(model)
	require.NoError(t, err)
	rows, adapter := c.Vocab+5, grownAdapter(t, c, 5)
	merged := filepath.Join(t.TempDir(), "merged")
	status, _, errs := snugged("merge", "-model", model, "-adapter", adapter, "-o", merged)
	require.Zero(t, status, errs)
	grown, err := transformer.ReadConfig(merged)
	require.NoError(t, err)
	require.Equal(t, rows, grown.Vocab)
	require.Equal(t, c.Tied, grown.Tied, "the folder has one matrix twice, or the model two")
	sameFile(t, filepath.Join(model, "tokenizer.json"), filepath.Join(merged, "tokenizer.json"))
	for _, args := range [][]string{{"-model", merged}, {"-model", model, "-adapter", adapter}} {
		status, _, errs := snugged(append([]string{"generate", "-prompt", "say q", "-tokens", "3", "-compute", "f32"}, args...)...)
		require.Zero(t, status, errs)
	}
}

func sameFile(t *testing.T, a, b string) {
	x, err := os.ReadFile(a)
	require.NoError(t, err)
	y, err := os.ReadFile(b)
	require.NoError(t, err)
	require.Equal(t, x, y)
}
