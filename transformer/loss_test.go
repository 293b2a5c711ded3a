package transformer

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/plan"
	"github.com/stretchr/testify/require"
)

// TestWeights: the mean loss is weighted, and so are its gradients, on every device.
func TestWeights(t *testing.T) {
	ctx := context.Background()
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, c := range []*Config{tiny(), tinyGemma()} {
			m := newTiny(t, c, Options{Seed: 3, Device: p.Dev})
			b := someBatch(4, c.Vocab, 2, 8)
			plain, want := gradientsAndLoss(t, m, b)
			b.Weights = make([]float32, len(b.Labels))
			for i := range b.Weights {
				b.Weights[i] = 1
			}
			ones, same := gradientsAndLoss(t, m, b)
			require.Equal(t, plain, ones)
			require.Equal(t, want, same)

			// Weights of 0 are ignored labels; all else weighs the same.
			for i := range b.Weights {
				b.Weights[i] = float32(i%2) * 0.25
			}
			weighted, have := gradientsAndLoss(t, m, b)
			require.Equal(t, plain.Targets, weighted.Targets)
			require.Equal(t, b.Weight(), weighted.Weight)
			odd := Batch{Tokens: b.Tokens, Sequences: 2, Labels: append([]int32(nil), b.Labels...)}
			for i := range odd.Labels {
				if i%2 == 0 {
					odd.Labels[i] = -1
				}
			}
			left, want := gradientsAndLoss(t, m, odd)
			require.InEpsilon(t, left.Mean(), weighted.Mean(), 1e-6)
			require.InDelta(t, left.Weight*0.25, weighted.Weight, 1e-9)
			for name, g := range have {
				require.InDeltaSlice(t, want[name], g, 1e-5, name)
			}
			evaluated, err := m.Evaluate(ctx, b)
			require.NoError(t, err)
			require.InEpsilon(t, weighted.Mean(), evaluated.Mean(), 1e-5)
		}
	})
}

func gradientsAndLoss(t testing.TB, m *Model, b Batch) (fused.Loss, map[string][]float32) {
	t.Helper()
	loss, err := m.Evaluate(context.Background(), b)
	require.NoError(t, err)
	return loss, gradients(t, m, b)
}

// TestWeightedGradientsByDifferences has weights that differ from label to label.
func TestWeightedGradientsByDifferences(t *testing.T) {
	m := newTiny(t, tinyGemma(), Options{Seed: 3, LossClasses: 4})
	b := someBatch(7, 11, 2, 9)
	for i := range b.Tokens {
		b.Weights = append(b.Weights, float32(i%5)*0.3)
	}
	grads := gradients(t, m, b)
	for _, p := range m.Params() {
		v := p.Value.Float32s()
		at := func(x float32) float64 {
			old := v[1]
			defer func() { v[1] = old }()
			v[1] += x
			loss, err := m.Evaluate(context.Background(), b)
			require.NoError(t, err)
			return loss.Mean()
		}
		const h = 1.0 / 1024
		want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
		require.InDelta(t, want, grads[p.Name][1], 5e-4, p.Name)
	}
}

func TestWeightsOfBatches(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	require.Equal(t, 2.0, Batch{Labels: []int32{3, -1, 0}}.Weight())
	require.Equal(t, 0.75, Batch{Labels: []int32{3, -1, 0}, Weights: []float32{0.25, 9, 0.5}}.Weight())
	require.Equal(t, 0.25, Batch{Labels: []int32{3, -1, 0}, Weights: []float32{0.25}}.Weight(), "a batch that is refused")

	m, ctx := newTiny(t, tiny(), Options{}), context.Background()
	b := someBatch(1, 11, 2, 4)
	b.Weights = make([]float32, 8)
	loss, err := m.Backprop(ctx, b, 1, refusing{})
	require.NoError(t, err, "weight 0 calls nobody")
	require.Equal(t, fused.Loss{}, loss)
	for _, c := range []struct {
		weights []float32
		want    error
		says    string
	}{
		{[]float32{}, snug.ErrShape, "0 weights, want one for each of 8 labels"},
		{make([]float32, 9), snug.ErrShape, "9 weights"},
		{[]float32{1, 1, nan, 1, 1, 1, 1, 1}, snug.ErrConfig, "weight 2 is NaN"},
		{[]float32{1, 1, 1, inf, 1, 1, 1, 1}, snug.ErrConfig, "weight 3 is +Inf"},
		{[]float32{1, 1, 1, 1, -1, 1, 1, 1}, snug.ErrConfig, "weight 4 is -1"},
	} {
		t.Run(c.says, func(t *testing.T) {
			b.Weights = c.weights
			_, err := m.Backprop(ctx, b, 1, refusing{})
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.says)
			_, err = m.Evaluate(ctx, b)
			require.ErrorIs(t, err, c.want)
		})
	}
}

// TestLossClasses: tiles of the vocabulary change the rounding of gradients, and the workspace.
func TestLossClasses(t *testing.T) {
	c := tinyGemma()
	c.Vocab = 3000
	b := someBatch(4, c.Vocab, 2, 8)
	whole := newTiny(t, c, Options{Seed: 3})
	tiled := newTiny(t, c, Options{Seed: 3, LossClasses: 100})
	wantLoss, want := gradientsAndLoss(t, whole, b)
	loss, have := gradientsAndLoss(t, tiled, b)
	require.InEpsilon(t, wantLoss.Sum, loss.Sum, 1e-6)
	for name, g := range have {
		require.InDeltaSlice(t, want[name], g, 1e-5, name)
	}
	require.Equal(t, allLogits(t, whole, b), allLogits(t, tiled, b))
	require.Less(t, 5*tiled.Memory().Workspace, whole.Memory().Workspace)
	_, err := New(c, Options{LossClasses: -1})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// renamed writes a folder like another, with other names of tensors, "" for none.
func renamed(t *testing.T, from string, name func(string) string) string {
	t.Helper()
	w, err := amp.OpenWeights(from)
	require.NoError(t, err)
	defer w.Close()
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(from, "config.json"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
	require.NoError(t, amp.SaveShards(dir, 0, func(yield func(amp.Tensor, snug.View) bool) {
		for _, info := range w.Tensors() {
			v := make([]snug.BFloat16, info.Len())
			require.NoError(t, w.Load(info.Name, snug.ViewOf(v)))
			if info.Name = name(info.Name); info.Name != "" && !yield(info, snug.ViewOf(v)) {
				return
			}
		}
	}, map[string]string{"format": "pt"}))
	return dir
}

// TestMultimodal: of a folder of a multimodal model there is the text, which is a model of its own.
func TestMultimodal(t *testing.T) {
	g := readModel(t, "gemma3_images")
	c, err := ReadConfig(g.dir)
	require.NoError(t, err)
	require.Equal(t, "gemma3", c.Whole)
	m := open32(t, g, Options{DType: snug.BF16})
	require.Empty(t, m.Config().Whole)
	want := allLogits(t, m, g.batch())
	for _, p := range m.Params() {
		require.True(t, strings.HasPrefix(p.Name, "model."), p.Name)
	}

	dir := t.TempDir()
	require.NoError(t, m.Save(dir, 0))
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"Gemma3ForCausalLM"`)
	require.Contains(t, string(text), `"model_type": "gemma3_text"`)
	again, err := Open(dir, Options{})
	require.NoError(t, err)
	require.Equal(t, want, allLogits(t, again, g.batch()))

	fresh, err := New(c, Options{})
	require.NoError(t, err)
	require.Equal(t, len(m.Params()), len(fresh.Params()))

	for name, change := range map[string]struct {
		name func(string) string
		says string // of the error, empty for none
	}{
		"modules in memory": {func(n string) string {
			return "model." + strings.Replace(n, "language_model.model.", "language_model.", 1)
		}, ""},
		"text alone":       {func(n string) string { return keep(n, strings.HasPrefix(n, "language_model.")) }, ""},
		"a part of images": {func(n string) string { return keep(n, !strings.HasPrefix(n, "multi_modal_projector.")) }, ""},
		"another part": {func(n string) string { return strings.Replace(n, "vision_tower.", "audio_tower.", 1) },
			`tensors are not parameters of the model ("audio_tower.`},
		"a longer name": {func(n string) string { return strings.Replace(n, "vision_tower.", "vision_tower_2.", 1) },
			`tensors are not parameters of the model ("vision_tower_2.`},
		"a matrix of text": {func(n string) string { return keep(n, !strings.HasSuffix(n, "mlp.up_proj.weight")) },
			`1 tensors are missing ("language_model.model.layers.0.mlp.up_proj.weight")`},
		"no text": {func(n string) string { return keep(n, !strings.HasPrefix(n, "language_model.")) }, "15 tensors are missing"},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := Open(renamed(t, g.dir, change.name), Options{})
			if change.says != "" {
				require.ErrorIs(t, err, snug.ErrConfig, name)
				require.ErrorContains(t, err, change.says, name)
				return
			}
			require.NoError(t, err, name)
			require.Equal(t, want, allLogits(t, m, g.batch()), name)
		})
	}
}

func keep(name string, kept bool) string {
	if kept {
		return name
	}
	return ""
}

// TestLossRowsOfDevices: without LossRows, package plan predicts the workspace that a model takes, which on the CPU has
// the logits of 128 rows, and on other devices of more.
func TestLossRowsOfDevices(t *testing.T) {
	const tokens, sequences = 100, 2
	c := tiny()
	c.Context = tokens
	shape, err := c.Plan(tokens)
	require.NoError(t, err)
	d, err := plan.DeviceNamed("24GB")
	require.NoError(t, err)
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		m := newTiny(t, c, Options{Seed: 3, Device: p.Dev})
		_, err := m.Evaluate(context.Background(), someBatch(4, c.Vocab, sequences, tokens))
		require.NoError(t, err)
		d, rows := d, 200
		if d.Unified = p.Dev == nil || p.Dev.IsCPU(); d.Unified {
			rows = 128
		}
		run, err := plan.Task{Model: shape, Device: d, Batch: sequences}.Predict(plan.Run{Micro: sequences, Window: 1})
		require.NoError(t, err)
		require.Equal(t, rows*(c.Vocab+5), int(m.pass.WorkspaceBytes()/4))
		require.EqualValues(t, 4*int(m.pass.WorkspaceBytes()/4), run.Peak[meter.OnDevice][meter.Workspace]-4*shape.Tables)
	})
}
