package vision_test

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// goldenModel has what transformers computes for two sequences.
type goldenModel struct {
	Tokens    [][]int32
	Logits    []float64
	Loss      float64
	Gradients map[string][2]float64
}

func openGoldenModel(t *testing.T, name string, o vision.ModelOptions) (*vision.Model, goldenModel, vision.Batch) {
	data, err := os.ReadFile(filepath.Join("testdata/models", name, "golden.json"))
	require.NoError(t, err)
	var g goldenModel
	require.NoError(t, json.Unmarshal(data, &g))
	m, err := vision.OpenModel(filepath.Join("testdata/models", name), o)
	require.NoError(t, err)
	b := vision.Batch{Text: transformer.Batch{Starts: []int{0}}}
	for _, tokens := range g.Tokens {
		b.Text.Tokens = append(b.Text.Tokens, tokens...)
		for _, next := range append(tokens[1:len(tokens):len(tokens)], -100) {
			if next == m.Token() {
				next = -100
			}
			b.Text.Labels = append(b.Text.Labels, next)
		}
		b.Text.Starts = append(b.Text.Starts, len(b.Text.Tokens))
	}
	c := m.Tower.Config()
	for i := range 3 {
		b.Images = append(b.Images, numbers(1000+i, c.Channels*c.Image*c.Image))
	}
	return m, g, b
}

// TestModelGolden: logits, the loss and all gradients of two packed sequences with images are those of transformers.
func TestModelGolden(t *testing.T) {
	for _, name := range []string{"llava", "llava-mistral", "gemma3"} {
		t.Run(name, func(t *testing.T) {
			m, golden, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
			ctx, vocab := context.Background(), m.Text.Config().Vocab
			logits := make([]float32, 2*vocab)
			require.NoError(t, m.Logits(ctx, logits, b, []int32{int32(b.Text.Starts[1] - 1), int32(b.Text.Starts[2] - 1)}))
			near(t, golden.Logits, logits, 5e-6)
			loss, err := m.Evaluate(ctx, b)
			require.NoError(t, err)
			require.InEpsilon(t, golden.Loss, loss.Mean(), 5e-6)
			w := sums{}
			for name, v := range m.Trainable() {
				w[name] = make([]float32, v.Len())
			}
			loss, err = m.Backprop(ctx, b, 1, w)
			require.NoError(t, err)
			require.InEpsilon(t, golden.Loss, loss.Mean(), 5e-6)
			names := map[string]string{} // of the folder
			for name := range w {
				folder := name
				if !strings.HasPrefix(name, "multi_modal_projector.") {
					folder = "language_model." + name
				}
				names[folder] = name
			}
			require.Len(t, golden.Gradients, len(w))
			number := 0
			for _, folder := range slices.Sorted(maps.Keys(golden.Gradients)) {
				square, dot, of := 0., 0., w[names[folder]]
				require.NotNil(t, of, folder)
				for i, v := range numbers(2000+number, len(of)) {
					g := float64(of[i])
					square, dot = square+g*g, dot+g*float64(v)
				}
				want := golden.Gradients[folder]
				require.InDelta(t, want[0], math.Sqrt(square), 1e-5*want[0], folder)
				require.InDelta(t, want[1], dot, 1e-5*want[0], folder)
				number++
			}
		})
	}
}

// tuneGolden trains adapters of a text in 4 bits, and the projector, and returns the losses.
func tuneGolden(t *testing.T, m *vision.Model, b vision.Batch, o train.Options) (losses []float64) {
	o.Schedule, o.Seed = train.Constant(5e-3), 1
	tr, err := train.New(m, o)
	require.NoError(t, err)
	for range 20 {
		r, err := tr.Train(context.Background(), []vision.Batch{b})
		require.NoError(t, err)
		losses = append(losses, r.Loss)
	}
	return losses
}

// TestModelTunes: QLoRA of the text with a projector that trains learns, also with updates in the backward pass, and its adapter goes
// on from a folder. PEFT gives the same logits: SNUG_SAVE=DIR, and testdata/models.py adapter DIR.
func TestModelTunes(t *testing.T) {
	options := vision.ModelOptions{Text: transformer.Options{
		DType: snug.F32, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8}, Seed: 2,
	}}
	for name, how := range map[string]train.Options{"sums": {}, "in backward": {Gradients: plan.InBackward, StateBits: 8}} {
		t.Run(name, func(t *testing.T) {
			m, _, b := openGoldenModel(t, "llava", options)
			losses := tuneGolden(t, m, b, how)
			require.Less(t, losses[19], losses[0]/2)
			dir := filepath.Join(t.TempDir(), "adapter")
			require.NoError(t, m.SaveAdapter(dir))
			resumed := options
			resumed.Text.Adapter, resumed.Text.AdapterDir = nil, dir
			again, _, _ := openGoldenModel(t, "llava", resumed)
			want, err := m.Evaluate(context.Background(), b)
			require.NoError(t, err)
			got, err := again.Evaluate(context.Background(), b)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.NoError(t, again.SaveAdapter(dir))
		})
	}
}

// TestModelAdapterForPEFT writes adapters of a text in floats with the logits that PEFT must give.
func TestModelAdapterForPEFT(t *testing.T) {
	to := os.Getenv("SNUG_SAVE")
	if to == "" {
		t.Skip("SNUG_SAVE names no folder")
	}
	for _, name := range []string{"llava", "llava-mistral", "gemma3"} {
		m, _, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8}, Seed: 2}})
		tuneGolden(t, m, b, train.Options{})
		require.NoError(t, m.SaveAdapter(filepath.Join(to, name)))
		logits := make([]float32, 2*m.Text.Config().Vocab)
		require.NoError(t, m.Logits(context.Background(), logits, b, []int32{int32(b.Text.Starts[1] - 1), int32(b.Text.Starts[2] - 1)}))
		text, err := json.Marshal(logits)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(to, name, "want.json"), text, 0o644))
	}
}
