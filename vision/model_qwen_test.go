package vision_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// TestModelGrids: images whose grids do not fit are refused before anything is computed.
func TestModelGrids(t *testing.T) {
	m, _, b := openGoldenModel(t, "qwen2_5_vl", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	require.Equal(t, 0, m.Encoder.Config().Image)
	require.Equal(t, "qwen2_5_vl", m.Encoder.Config().Family)
	ctx := context.Background()
	for name, of := range map[string]func(b *vision.Batch){
		"another grid":       func(b *vision.Batch) { b.Images[0].Grid = [3]int{1, 6, 6} },
		"a grid on its side": func(b *vision.Batch) { b.Images[0].Values = b.Images[0].Values[24:] },
		"no grid":            func(b *vision.Batch) { b.Images[1].Layout = vision.Layout{} },
		"squares of others":  func(b *vision.Batch) { b.Images[1].Merge = 1 },
		"half of a square":   func(b *vision.Batch) { b.Images[1].Grid = [3]int{1, 7, 4} },
		"a large grid":       func(b *vision.Batch) { b.Images[1].Grid = [3]int{math.MaxInt, math.MaxInt - 1, math.MaxInt - 1} },
		"a negative grid":    func(b *vision.Batch) { b.Images[1].Grid = [3]int{1, -8, -4} },
		"nil pixels":         func(b *vision.Batch) { b.Images[1].Values = nil },
		"an image too few":   func(b *vision.Batch) { b.Images = b.Images[:2] },
		"own positions":      func(b *vision.Batch) { b.Text.Positions = make([][]int32, 3) },
		"images in a row": func(b *vision.Batch) {
			b.Text.Tokens = slices.Delete(slices.Clone(b.Text.Tokens), 8, 10)
			b.Text.Starts = nil
		},
		"starts behind":       func(b *vision.Batch) { b.Text.Starts = []int{0, len(b.Text.Tokens) + 5} },
		"starts that go down": func(b *vision.Batch) { b.Text.Starts = []int{0, 9, 3, len(b.Text.Tokens)} },
	} {
		t.Run(name, func(t *testing.T) {
			b := b
			b.Images = slices.Clone(b.Images)
			of(&b)
			_, err := m.Evaluate(ctx, b)
			require.True(t, errors.Is(err, snug.ErrShape) || errors.Is(err, snug.ErrConfig), err)
		})
	}
	text := vision.Batch{Text: transformer.Batch{Tokens: []int32{1, 7, 2}, Labels: []int32{7, 2, -100}, Positions: [][]int32{{3, 4, 9}}}}
	want, err := m.Text.Evaluate(ctx, text.Text)
	require.NoError(t, err)
	got, err := m.Evaluate(ctx, text) // whose positions may be its own
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// TestModelDeepstack: the projector reads the last block too where its rows are added to the text, and it may read no other.
func TestModelDeepstack(t *testing.T) {
	_, golden, b := openGoldenModel(t, "qwen3_vl", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	require.Len(t, golden.Deep, 2)
	for indexes, want := range golden.Deep {
		m, err := vision.OpenModel(edited(t, "models/qwen3_vl", map[string]string{"vision_config.deepstack_visual_indexes": indexes}), vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
		require.NoError(t, err)
		loss, err := m.Evaluate(context.Background(), b)
		require.NoError(t, err)
		require.InEpsilon(t, want, loss.Mean(), 5e-6, indexes)
	}
}

// TestModelDevices: devices compute the logits, and the losses of two steps of training.
func TestModelDevices(t *testing.T) {
	for _, name := range []string{"qwen2_5_vl", "qwen3_vl"} {
		var want []float32
		for _, backend := range kerneltest.Backends(t) {
			t.Run(name+", "+backend.Name, func(t *testing.T) {
				m, _, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.BF16, Device: backend.Dev}})
				have := make([]float32, 2*20)
				require.NoError(t, m.Logits(t.Context(), have, b, nil))
				tr, err := train.New(m, train.Options{Schedule: train.Constant(1e-3), Seed: 1})
				require.NoError(t, err)
				for range 3 {
					r, err := tr.Train(t.Context(), []vision.Batch{b})
					require.NoError(t, err)
					have = append(have, float32(r.Loss))
				}
				if want == nil {
					want = have
				}
				near(t, float64s(want), have, 0.01)
				require.NoError(t, m.Close())
			})
		}
	}
}

// TestModelGridSequences: sequences of one length are those with Starts.
func TestModelGridSequences(t *testing.T) {
	m, _, golden := openGoldenModel(t, "qwen3_vl", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	one := slices.Concat([]int32{1}, slices.Repeat([]int32{m.Token()}, 6), []int32{8, 9})
	b := vision.Batch{Text: transformer.Batch{Tokens: slices.Concat(one, one), Labels: slices.Repeat([]int32{3}, 18), Sequences: 2}}
	b.Images = []vision.Pixels{golden.Images[0], golden.Images[0]}
	equal, err := m.Evaluate(context.Background(), b)
	require.NoError(t, err)
	b.Text.Sequences, b.Text.Starts = 0, []int{0, 9, 18}
	packed, err := m.Evaluate(context.Background(), b)
	require.NoError(t, err)
	require.Equal(t, packed, equal)
}

// TestModelNamesInMemory: a folder whose tensors have the names of the modules in memory is the same model, also with the config.json of
// other versions.
func TestModelNamesInMemory(t *testing.T) {
	dir := edited(t, "models/qwen2_5_vl", map[string]string{"vision_config.model_type": `"qwen2_5_vl"`, "vision_config.rope_parameters": "null"})
	w, err := amp.OpenWeights("testdata/models/qwen2_5_vl")
	require.NoError(t, err)
	require.NoError(t, amp.SaveShards(dir, 0, func(yield func(amp.Tensor, snug.View) bool) {
		for _, info := range w.Tensors() {
			v, _, err := snug.MakeView(snug.CPU(), info.ElementType(), info.Len())
			require.NoError(t, err)
			require.NoError(t, w.Load(info.Name, v))
			if rest, is := strings.CutPrefix(info.Name, "model."); is {
				info.Name = "model.language_model." + rest
			} else if info.Name != "lm_head.weight" {
				info.Name = "model." + info.Name
			}
			if !yield(info, v) {
				return
			}
		}
	}, nil))
	require.NoError(t, w.Close())
	want, _, b := openGoldenModel(t, "qwen2_5_vl", vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	m, err := vision.OpenModel(dir, vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	require.NoError(t, err)
	ctx, logits := context.Background(), [2][]float32{make([]float32, 2*20), make([]float32, 2*20)}
	require.NoError(t, want.Logits(ctx, logits[0], b, nil))
	require.NoError(t, m.Logits(ctx, logits[1], b, nil))
	require.Equal(t, logits[0], logits[1])
	saved := t.TempDir()
	require.NoError(t, m.Save(saved, 0)) // with the published names
	w, err = amp.OpenWeights(saved)
	require.NoError(t, err)
	for _, name := range []string{"model.embed_tokens.weight", "visual.patch_embed.proj.weight", "visual.merger.ln_q.weight", "lm_head.weight"} {
		_, has := w.Tensor(name)
		require.True(t, has, name)
	}
	require.NoError(t, w.Close())
}
