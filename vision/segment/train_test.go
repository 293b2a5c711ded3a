package segment_test

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/vision"
	"github.com/snug-ml/snug/vision/segment"
)

func open(t *testing.T, dir string, o segment.Options) *segment.Model {
	m, err := segment.Open(dir, o)
	require.NoError(t, err)
	return m
}

// tune trains a model, and returns its losses.
func tune(t *testing.T, m *segment.Model, batches [][]segment.Item, o train.Options) (losses []float64) {
	o.Schedule, o.Seed = train.Constant(3e-3), 1
	tr, err := train.New(m, o)
	require.NoError(t, err)
	for range 15 {
		r, err := tr.Train(context.Background(), batches)
		require.NoError(t, err)
		losses = append(losses, r.Loss)
	}
	require.NoError(t, tr.Close())
	return losses
}

// TestTrains: training lowers the loss, with features of 32 and of 16 bits, over micro-batches, with small states and in the backward pass.
func TestTrains(t *testing.T) {
	items, _ := batch(t, "rel", "points")
	var low []segment.Item
	for _, item := range items {
		v, _, err := snug.MakeView(snug.CPU(), snug.BF16, item.Features.Len())
		require.NoError(t, err)
		require.NoError(t, amp.Cast(v, item.Features))
		item.Features = v
		low = append(low, item)
	}
	for name, c := range map[string]struct {
		batches [][]segment.Item
		o       train.Options
		options segment.Options
	}{
		"sums":        {[][]segment.Item{items}, train.Options{}, segment.Options{}},
		"accumulates": {[][]segment.Item{items[:1], items[1:]}, train.Options{StateBits: 8}, segment.Options{}},
		"in backward": {[][]segment.Item{low}, train.Options{Gradients: plan.InBackward, StateBits: 8}, segment.Options{Several: true}},
		"head":        {[][]segment.Item{low}, train.Options{}, segment.Options{Train: func(name string) bool { return filepath.Ext(name) == ".weight" }}},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.Loss = segment.Loss{Focal: 10, Dice: 2, IoU: 0.5}
			losses := tune(t, open(t, filepath.Join(folders, "rel"), c.options), c.batches, c.o)
			require.Less(t, losses[14], losses[0]-0.2)
		})
	}
	items, _ = batch(t, "rel", "boxes") // whose prompts are equally long
	a := tune(t, open(t, filepath.Join(folders, "rel"), segment.Options{}), [][]segment.Item{items}, train.Options{})
	b := tune(t, open(t, filepath.Join(folders, "rel"), segment.Options{}), [][]segment.Item{items[:1], items[1:]}, train.Options{})
	require.InDeltaSlice(t, a, b, 1e-4, "accumulated gradients are those of the batch")
}

// TestSteps: losses of steps of AdamW are those of PyTorch.
func TestSteps(t *testing.T) {
	for _, name := range models {
		items, several := batch(t, name, "boxes")
		tr, err := train.New(open(t, filepath.Join(folders, name), segment.Options{Several: several}), train.Options{Schedule: train.Constant(1e-3)})
		require.NoError(t, err)
		for i, want := range readGolden(t, name).Steps {
			r, err := tr.Train(context.Background(), [][]segment.Item{items})
			require.NoError(t, err)
			require.InEpsilon(t, want, r.Loss, 2e-5, "%s: step %d", name, i)
		}
	}
}

// TestSaves: a tuned model, and one that Create made, open again with the same masks. transformers gives them too: SNUG_SAVE=DIR, and
// testdata/sam.py check DIR.
func TestSaves(t *testing.T) {
	to := t.TempDir()
	if dir := os.Getenv("SNUG_SAVE"); dir != "" {
		to = dir
	}
	c, err := segment.ReadConfig(filepath.Join(folders, "rel"))
	require.NoError(t, err)
	created := filepath.Join(t.TempDir(), "created")
	require.NoError(t, segment.Create(created, c, 3))
	read, err := segment.ReadConfig(created)
	require.NoError(t, err)
	require.Equal(t, c, read)
	_, err = vision.OpenProcessor(created)
	require.NoError(t, err)
	for name, from := range map[string]string{"rel": filepath.Join(folders, "rel"), "plain": filepath.Join(folders, "plain"), "created": created} {
		t.Run(name, func(t *testing.T) {
			items, _ := batch(t, "rel", "boxes")
			features := encode(t, from, layers.Options{})
			for i := range items {
				items[i].Features = snug.ViewOf(features[i*c.FeatureLen():][:c.FeatureLen()])
			}
			m := open(t, from, segment.Options{Several: true})
			tune(t, m, [][]segment.Item{items}, train.Options{})
			dir := filepath.Join(to, name)
			require.NoError(t, m.Save(dir))
			predict := func(m *segment.Model) (masks, scores []float32) {
				masks, scores = make([]float32, 2*m.Masks()*1600), make([]float32, 2*m.Masks())
				require.NoError(t, m.Predict(context.Background(), masks, scores, items))
				return masks, scores
			}
			masks, scores := predict(m)
			again := open(t, dir, segment.Options{Several: true})
			againMasks, againScores := predict(again)
			require.Equal(t, masks, againMasks)
			require.Equal(t, scores, againScores)
			require.Equal(t, features, encode(t, dir, layers.Options{}))
			require.NoError(t, again.Save(dir)) // over itself
			if os.Getenv("SNUG_SAVE") != "" {
				text, err := json.Marshal(map[string]any{"masks": masks, "scores": scores})
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "want.json"), text, 0o644))
			}
		})
	}
}

// TestEncoderTypes: features in 16 bits are those in float32 but for rounding, and each image has its own.
func TestEncoderTypes(t *testing.T) {
	for _, name := range models {
		want := encode(t, filepath.Join(folders, name), layers.Options{})
		for dt, tolerance := range map[snug.DType]float64{snug.BF16: 0.1, snug.F16: 0.02} {
			got, sum := encode(t, filepath.Join(folders, name), layers.Options{DType: dt}), 0.
			for i, v := range want {
				sum += math.Pow(float64(v-got[i]), 2)
			}
			require.Less(t, math.Sqrt(sum/float64(len(want))), tolerance, dt)
		}
		e, err := segment.OpenEncoder(filepath.Join(folders, name), layers.Options{})
		require.NoError(t, err)
		second := make([]float32, len(want)/2)
		require.NoError(t, e.Encode(context.Background(), second, images(e.Config())[1:]))
		require.Equal(t, want[len(want)/2:], second)
	}
}

// TestRefuses: what does not fit is an error.
func TestRefuses(t *testing.T) {
	ctx, dir := context.Background(), filepath.Join(folders, "rel")
	m := open(t, dir, segment.Options{})
	items, _ := batch(t, "rel", "points")
	for name, c := range map[string]struct {
		wrong  func(i *segment.Item)
		target error
	}{
		"features":   {func(i *segment.Item) { i.Features = snug.View{} }, snug.ErrShape},
		"target":     {func(i *segment.Item) { i.Target = i.Target[:7] }, snug.ErrShape},
		"no target":  {func(i *segment.Item) { i.Target = nil }, snug.ErrShape},
		"mask":       {func(i *segment.Item) { i.Prompt.Mask = make([]float32, 1600) }, snug.ErrConfig},
		"levels":     {func(i *segment.Item) { i.Target = slices.Repeat([]float32{255}, len(i.Target)) }, snug.ErrConfig},
		"below 0":    {func(i *segment.Item) { i.Target = slices.Repeat([]float32{-1}, len(i.Target)) }, snug.ErrConfig},
		"no number":  {func(i *segment.Item) { i.Target = slices.Repeat([]float32{float32(math.NaN())}, len(i.Target)) }, snug.ErrConfig},
		"coordinate": {func(i *segment.Item) { i.Prompt.Box = &segment.Box{Left: float32(math.NaN())} }, snug.ErrNonFinite},
		"points":     {func(i *segment.Item) { i.Prompt.Points = make([]segment.Point, 1<<20) }, snug.ErrShape},
	} {
		wrong := []segment.Item{items[0], items[1]}
		c.wrong(&wrong[1])
		_, err := m.Evaluate(ctx, wrong)
		require.ErrorIs(t, err, c.target, name)
		_, err = m.Backprop(ctx, wrong, 1, sums{})
		require.ErrorIs(t, err, c.target, name)
	}
	for _, size := range []segment.Size{{Height: 41, Width: 3}, {Height: 3, Width: math.MaxInt}, {}} {
		_, err := m.Config().Photo(make([]float32, 1600), size, segment.Size{Height: 3, Width: 3})
		require.ErrorIs(t, err, snug.ErrShape)
	}
	for _, size := range []segment.Size{{Height: -1, Width: 3}, {Height: 1 << 20, Width: math.MaxInt}, {}} {
		_, err := m.Config().Photo(make([]float32, 1600), segment.Size{Height: 40, Width: 3}, size)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	_, err := m.Evaluate(ctx, nil)
	require.ErrorIs(t, err, snug.ErrShape)
	require.ErrorIs(t, m.Predict(ctx, nil, nil, items), snug.ErrShape)
	_, err = segment.Open(dir, segment.Options{Loss: segment.Loss{Focal: -1}})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, m.Close())
	_, err = m.Evaluate(ctx, items)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, m.Save(t.TempDir()), snug.ErrConfig)
	e, err := segment.OpenEncoder(dir, layers.Options{})
	require.NoError(t, err)
	require.ErrorIs(t, e.Encode(ctx, make([]float32, 3), images(e.Config())), snug.ErrShape)
	require.ErrorIs(t, e.Encode(ctx, nil, [][]float32{{1}}), snug.ErrShape)
}

// TestRefusesConfigs: a config.json that the weights do not fit, or that is no model of SAM, is an error before memory is taken.
func TestRefusesConfigs(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(folders, "rel", "config.json"))
	require.NoError(t, err)
	weights, err := os.ReadFile(filepath.Join(folders, "rel", "model.safetensors"))
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), weights, 0o600))
	for part, fields := range map[string]map[string]any{
		"":                      {"model_type": "sam2", "vision_config": 3, "mask_decoder_config": []int{}},
		"vision_config":         {"hidden_size": 1 << 30, "image_size": -4, "patch_size": 0, "num_hidden_layers": 1 << 10, "window_size": 11, "mlp_dim": 1 << 19, "num_pos_feats": 7, "hidden_act": "step", "use_rel_pos": "yes", "layer_norm_eps": 0, "num_attention_heads": 3, "output_channels": 24},
		"prompt_encoder_config": {"mask_input_channels": 6, "num_point_embeddings": 5, "image_size": []int{40, 40}},
		"mask_decoder_config":   {"num_hidden_layers": 900, "attention_downsample_rate": 3, "num_multimask_outputs": 4, "iou_head_depth": 1, "iou_head_hidden_dim": 1 << 20, "hidden_act": nil, "num_attention_heads": 16},
	} {
		for field, v := range fields {
			whole := map[string]any{}
			require.NoError(t, json.Unmarshal(text, &whole))
			in := whole
			if part != "" {
				in = whole[part].(map[string]any)
			}
			in[field] = v
			changed, err := json.Marshal(whole)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), changed, 0o600))
			_, err = segment.Open(dir, segment.Options{})
			_, other := segment.OpenEncoder(dir, layers.Options{})
			if field == "hidden_act" && v == nil { // the default
				require.NoError(t, err)
				continue
			}
			require.True(t, err != nil || other != nil, field)
		}
	}
	for _, bad := range []string{"", "{", "[]", `{"model_type": 3}`} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(bad), 0o600))
		_, err = segment.Open(dir, segment.Options{})
		require.ErrorIs(t, err, snug.ErrCorrupt)
	}
	_, err = segment.Open("", segment.Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = segment.Open(t.TempDir(), segment.Options{})
	require.Error(t, err)
	require.ErrorIs(t, segment.Create(t.TempDir(), segment.Config{}, 1), snug.ErrConfig)
}

// TestZero calls functions and methods with zero values and nil: none panics.
func TestZero(t *testing.T) {
	var none *segment.Model
	var encoder *segment.Encoder
	kerneltest.Zero(t, none, new(segment.Model), encoder, new(segment.Encoder), segment.Config{}, segment.Loss{}, segment.Item{}, segment.Prompt{}, segment.Stage{}, segment.IoU, segment.ViTB, segment.TinyViT, segment.Open, segment.OpenEncoder, segment.ReadFeatures, segment.Create, segment.ReadConfig)
}

// TestTarget: a mask of a photo becomes that of the resized and padded image.
func TestTarget(t *testing.T) {
	m := open(t, filepath.Join(folders, "rel"), segment.Options{})
	c := m.Config()
	side, image := c.Side(), c.Encoder.Image
	photo := segment.Size{Height: 30, Width: 60}
	mask := make([]float32, 30*60) // its right half
	for i := range mask {
		mask[i] = float32(i % 60 / 30)
	}
	resized := segment.Size{Height: image / 2, Width: image}
	got, err := c.Target(mask, resized, photo)
	require.NoError(t, err)
	for i, v := range got {
		y, x := i/side, i%side
		want := float32(0)
		if y < side/2 && x >= side/2 {
			want = 1
		}
		require.Equal(t, want, v, "row %d column %d", y, x)
	}
	for _, size := range []segment.Size{{}, {Height: 30, Width: 61}, {Height: -30, Width: -60}, {Height: math.MaxInt, Width: 2}} {
		_, err := c.Target(mask, resized, size)
		require.ErrorIs(t, err, snug.ErrShape)
	}
	_, err = c.Target(mask, segment.Size{Height: image + 1, Width: 1}, photo)
	require.ErrorIs(t, err, snug.ErrShape)
	_, err = segment.Config{}.Target(mask, resized, photo)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestSaveOfAnotherFolder: a folder whose config.json has changed since the model was opened is not mixed with it.
func TestSaveOfAnotherFolder(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join(folders, "rel"))))
	m := open(t, dir, segment.Options{})
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(text, ' '), 0o600))
	require.ErrorIs(t, m.Save(filepath.Join(t.TempDir(), "saved")), snug.ErrCorrupt)
}
