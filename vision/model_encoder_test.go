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
	"github.com/snug-ml/snug/remat"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

func every(string) bool { return true }

// encoders are models of all kinds of towers.
var encoders = []string{"llava", "gemma3", "paligemma", "llava_next", "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"}

func layoutsOf(b vision.Batch) (list []vision.Layout) {
	for _, x := range b.Images {
		list = append(list, x.Layout)
	}
	return list
}

// gradientsOf returns the gradients of a batch.
func gradientsOf(t *testing.T, m *vision.Model, b vision.Batch) (w sums, loss float64) {
	w = sums{}
	for name, v := range m.Trainable() {
		w[name] = make([]float32, v.Len())
	}
	l, err := m.Backprop(context.Background(), b, 1, w)
	require.NoError(t, err)
	return w, l.Mean()
}

// TestModelEncoderGradients: the gradients of a tower that trains in a model are those of transformers, and those of the rest do not change; with
// activations that are computed again they have the same bits.
func TestModelEncoderGradients(t *testing.T) {
	for _, name := range encoders {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(filepath.Join("testdata/models", name, "golden.json"))
			require.NoError(t, err)
			var golden struct{ Tower map[string][2]float64 }
			require.NoError(t, json.Unmarshal(text, &golden))
			options := vision.ModelOptions{Text: transformer.Options{DType: snug.F32}}
			frozen, _, b := openGoldenModel(t, name, options)
			want, wantLoss := gradientsOf(t, frozen, b)
			options.TrainEncoder = every
			m, _, b := openGoldenModel(t, name, options)
			got, loss := gradientsOf(t, m, b)
			require.Equal(t, wantLoss, loss)
			for name, g := range want {
				require.Equal(t, g, got[name], name)
			}
			largest := 0.0
			for _, of := range golden.Tower {
				largest = max(largest, of[0])
			}
			number, found := 0, 0
			for _, folder := range slices.Sorted(maps.Keys(golden.Tower)) {
				square, dot, of := 0., 0., got[folder]
				if rest, is := strings.CutPrefix(folder, "model."); is && of == nil {
					of = got[rest]
				}
				if of == nil {
					number++
					require.Contains(t, folder, "post_layernorm") // of a pooled row, which the model does not read
					continue
				}
				found++
				for i, v := range numbers(5000+number, len(of)) {
					g := float64(of[i])
					square, dot = square+g*g, dot+g*float64(v)
				}
				want := golden.Tower[folder]
				require.InDelta(t, want[0], math.Sqrt(square), 1e-5*largest, folder)
				require.InDelta(t, want[1], dot, 1e-5*largest, folder)
				number++
			}
			require.Equal(t, len(want)+found, len(got))
			costs, err := m.EncoderCosts(layoutsOf(b))
			require.NoError(t, err)
			for _, planned := range []func(remat.Costs) (remat.Plan, error){remat.Chen, remat.RecomputeAll} {
				p, err := planned(costs)
				require.NoError(t, err)
				require.NoError(t, m.SetEncoderPlan(p))
				again, _ := gradientsOf(t, m, b)
				for name, g := range got {
					require.True(t, slices.Equal(g, again[name]), name)
				}
			}
		})
	}
}

// TestModelEncoderTrains: a tower trains beside a text in 4 bits, whole or its last block alone, and Save writes it.
func TestModelEncoderTrains(t *testing.T) {
	for name, how := range map[string]struct {
		trains func(name string) bool
		train  train.Options
	}{
		"whole":       {every, train.Options{}},
		"in backward": {every, train.Options{Gradients: plan.InBackward, StateBits: 8}},
		"last block":  {func(name string) bool { return strings.Contains(name, "layers.1.") }, train.Options{}},
	} {
		t.Run(name, func(t *testing.T) {
			o := vision.ModelOptions{TrainEncoder: how.trains, Text: transformer.Options{DType: snug.F32, Base: qlora.NF4, Adapter: &qlora.AdapterOptions{Rank: 4, Alpha: 8}, Seed: 2}}
			m, _, b := openGoldenModel(t, "gemma3", o)
			before := map[string][]float32{}
			for name, v := range m.Trainable() {
				require.True(t, !strings.Contains(name, "vision_tower") || how.trains(name), name)
				before[name] = slices.Clone(v.Float32s())
			}
			losses := tuneGolden(t, m, b, how.train)
			require.Less(t, losses[19], losses[0]/2)
			changed := 0
			for name, v := range m.Trainable() {
				if strings.Contains(name, "vision_tower") && !slices.Equal(before[name], v.Float32s()) {
					changed++
				}
			}
			require.Positive(t, changed)
			require.ErrorIs(t, m.SaveAdapter(filepath.Join(t.TempDir(), "adapter")), snug.ErrConfig)
		})
	}
}

// TestModelEncoderSaves: a tower that has trained is saved with the rest of its model. transformers gives the same logits: SNUG_SAVE=DIR, and
// testdata/models.py saved DIR.
func TestModelEncoderSaves(t *testing.T) {
	for _, name := range encoders {
		t.Run(name, func(t *testing.T) {
			m, _, b := openGoldenModel(t, name, vision.ModelOptions{TrainEncoder: every, Text: transformer.Options{DType: snug.F32}})
			losses := tuneGolden(t, m, b, train.Options{})
			require.Less(t, losses[19], losses[0]/2)
			dir := filepath.Join(t.TempDir(), "saved")
			if to := os.Getenv("SNUG_SAVE"); to != "" {
				dir = filepath.Join(to, name)
			}
			require.NoError(t, m.Save(dir, 0))
			again, err := vision.OpenModel(dir, vision.ModelOptions{})
			require.NoError(t, err)
			want, err := m.Evaluate(context.Background(), b)
			require.NoError(t, err)
			got, err := again.Evaluate(context.Background(), b)
			require.NoError(t, err)
			require.Equal(t, want, got)
			writeLogits(t, m, b, dir)
		})
	}
}

// TestModelEncoderRefused: options that exclude each other, and batches that have no images to train on.
func TestModelEncoderRefused(t *testing.T) {
	o := vision.ModelOptions{TrainEncoder: every, Text: transformer.Options{DType: snug.F32}}
	both := o
	both.NoEncoder = true
	_, err := vision.OpenModel("testdata/models/gemma3", both)
	require.ErrorIs(t, err, snug.ErrConfig)
	m, _, b := openGoldenModel(t, "gemma3", o)
	features, err := m.Encoder.Encode(context.Background(), b.Images)
	require.NoError(t, err)
	_, err = m.Backprop(context.Background(), vision.Batch{Text: b.Text, Features: features}, 1, sums{})
	require.ErrorIs(t, err, snug.ErrConfig)
	text := vision.Batch{Text: transformer.Batch{Tokens: []int32{1, 7, 8, 2}, Labels: []int32{7, 8, 2, -100}}}
	w, _ := gradientsOf(t, m, text) // whose gradient of the tower is 0
	for name, g := range w {
		if strings.Contains(name, "vision_tower") {
			require.Equal(t, make([]float32, len(g)), g, name)
		}
	}
	_, err = m.EncoderCosts(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	qwen, _, _ := openGoldenModel(t, "qwen3_vl", o)
	_, err = qwen.EncoderCosts([]vision.Layout{{}})
	require.ErrorIs(t, err, snug.ErrShape)
	for _, none := range []*vision.Model{nil, {}} {
		require.ErrorIs(t, none.SetEncoderPlan(remat.Plan{}), snug.ErrConfig)
		_, err := none.EncoderCosts(make([]vision.Layout, 1))
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}

// TestModelSaveOfAnotherFolder: a folder whose config.json has changed since the model was opened is not mixed with it.
func TestModelSaveOfAnotherFolder(t *testing.T) {
	dir := edited(t, "models/llava", nil)
	m, err := vision.OpenModel(dir, vision.ModelOptions{})
	require.NoError(t, err)
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(text, ' '), 0o600))
	require.ErrorIs(t, m.Save(filepath.Join(t.TempDir(), "saved"), 0), snug.ErrCorrupt)
}
