package segment

import (
	"context"
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/train"
)

const tiny = "../testdata/sam/tiny"

// rewrite writes the tensors of a file to another one, each changed and renamed.
func rewrite(t *testing.T, from, to string, metadata map[string]string, change func(*amp.Tensor, []float32) (keep bool)) {
	t.Helper()
	w, err := amp.OpenWeights(from)
	require.NoError(t, err)
	require.NoError(t, amp.SaveWeights(to, func(yield func(amp.Tensor, snug.View) bool) {
		for _, of := range w.Tensors() {
			if of.ElementType() == 0 {
				continue
			}
			x := make([]float32, of.Len())
			require.NoError(t, w.Load(of.Name, snug.ViewOf(x)))
			if of.DType = "F32"; change(&of, x) && !yield(of, snug.ViewOf(x)) {
				return
			}
		}
	}, metadata))
	require.NoError(t, w.Close())
}

// TestOriginalViT: a vision transformer in the layout of segment_anything has the features that it has in that of transformers.
func TestOriginalViT(t *testing.T) {
	dir, path := "../testdata/sam/rel", filepath.Join(t.TempDir(), "sam.safetensors")
	c, err := ReadConfig(dir)
	require.NoError(t, err)
	original := newOriginal(&c)
	rewrite(t, dir, path, nil, func(of *amp.Tensor, _ []float32) bool {
		of.Name = original.rename(of.Name)
		return true
	})
	read, err := ReadConfig(path)
	require.NoError(t, err)
	c.Decoder.Heads, c.Decoder.Eps, c.Encoder.Ratio = 8, 1e-5, 4 // of published models
	require.Equal(t, c, read)
	image := make([]float32, 3*c.Encoder.Image*c.Encoder.Image)
	for i := range image {
		image[i] = float32(i%19)/9 - 1
	}
	var features [2][]float32
	for i, from := range []string{dir, path} {
		e, err := OpenEncoder(from, layers.Options{})
		require.NoError(t, err)
		features[i] = make([]float32, c.FeatureLen())
		require.NoError(t, e.Encode(context.Background(), features[i], [][]float32{image}))
		require.NoError(t, e.Close())
	}
	require.Equal(t, features[0], features[1])
	m, err := Open(path, Options{})
	require.NoError(t, err)
	names := maps.Collect(m.Trainable())
	require.Contains(t, names, "prompt_encoder.not_a_point_embed.weight")
	require.Contains(t, names, "mask_decoder.output_hypernetworks_mlps.3.layers.2.bias")
	require.NoError(t, m.Close())
}

// TestTinySaves: a decoder that was tuned with TinyViT is saved beside the tensors of the encoder as they were, whether a folder or a file was
// opened. SamModel gives its masks: SNUG_SAVE=DIR, and testdata/tinysam.py check DIR.
func TestTinySaves(t *testing.T) {
	to := t.TempDir()
	if dir := os.Getenv("SNUG_SAVE"); dir != "" {
		to = dir
	}
	ctx := context.Background()
	for name, from := range map[string]string{"folder": tiny, "file": filepath.Join(tiny, "model.safetensors")} {
		t.Run(name, func(t *testing.T) {
			e, err := OpenEncoder(from, layers.Options{})
			require.NoError(t, err)
			c := e.Config()
			x, features := numbers(1000, 2*3*c.Encoder.Image*c.Encoder.Image), make([]float32, 2*c.FeatureLen())
			require.NoError(t, e.Encode(ctx, features, [][]float32{x[:len(x)/2], x[len(x)/2:]}))
			items := make([]Item, 2)
			for i, box := range []Box{{2, 5, 31, 38.5}, {10, 0, 25, 12}} {
				items[i] = Item{Features: snug.ViewOf(features[i*c.FeatureLen():][:c.FeatureLen()]), Prompt: Prompt{Box: &box}, Target: make([]float32, 400)}
				items[i].Target[7] = 1
			}
			m, err := Open(from, Options{Several: true})
			require.NoError(t, err)
			trainer, err := train.New(m, train.Options{Schedule: train.Constant(1e-3)})
			require.NoError(t, err)
			_, err = trainer.Train(ctx, [][]Item{items})
			require.NoError(t, err)
			require.NoError(t, trainer.Close())
			dir := filepath.Join(to, name)
			require.NoError(t, m.Save(dir))
			again, err := Open(dir, Options{Several: true})
			require.NoError(t, err)
			require.NoError(t, again.Save(dir)) // over itself
			var masks, scores [2][]float32
			for i, of := range []*Model{m, again} {
				masks[i], scores[i] = make([]float32, 2*m.Masks()*1600), make([]float32, 2*m.Masks())
				require.NoError(t, of.Predict(ctx, masks[i], scores[i], items))
			}
			require.Equal(t, masks[0], masks[1])
			require.Equal(t, scores[0], scores[1])
			before, err := amp.OpenWeights(from)
			require.NoError(t, err)
			after, err := amp.OpenWeights(dir)
			require.NoError(t, err)
			require.Len(t, after.Tensors(), len(before.Tensors()))
			for _, of := range before.Tensors() {
				saved, has := after.Tensor(of.Name)
				require.True(t, has, of.Name)
				if strings.HasPrefix(of.Name, "image_encoder.") {
					require.Equal(t, of, saved)
					a, b := make([]byte, of.Bytes()), make([]byte, of.Bytes())
					require.NoError(t, before.ReadBytes(of.Name, 0, a))
					require.NoError(t, after.ReadBytes(of.Name, 0, b))
					require.Equal(t, a, b, of.Name)
				}
			}
			require.NoError(t, before.Close())
			require.NoError(t, after.Close())
			if os.Getenv("SNUG_SAVE") != "" {
				text, err := json.Marshal(map[string]any{"masks": masks[0], "scores": scores[0]})
				require.NoError(t, err)
				require.NoError(t, os.WriteFile(filepath.Join(dir, "want.json"), text, 0o644))
			}
		})
	}
}

// numbers are those of testdata/towers.py.
func numbers(number, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		at := uint32(i + number*97531)
		x[i] = float32(float64(at*at*2654435761+at*40503)/(1<<31) - 1)
	}
	return x
}

// TestCreateTiny: a new model with TinyViT opens with the configuration that it was made with.
func TestCreateTiny(t *testing.T) {
	dir, c := filepath.Join(t.TempDir(), "new"), TinyViT()
	c.Encoder.Image, c.Prompt.Image = 128, 128
	c.Encoder.Stages = []Stage{{8, 1, 16, 0, 0}, {12, 1, 24, 2, 3}, {16, 1, 16, 4, 2}}
	c.Encoder.Patch, c.Prompt.Patch = 8, 8
	require.NoError(t, Create(dir, c, 1))
	read, err := ReadConfig(dir)
	require.NoError(t, err)
	require.Equal(t, c, read)
	e, err := OpenEncoder(dir, layers.Options{DType: snug.BF16})
	require.NoError(t, err)
	out := make([]float32, c.FeatureLen())
	require.NoError(t, e.Encode(context.Background(), out, [][]float32{numbers(1, 3*128*128)}))
	for _, v := range out {
		require.False(t, v-v != 0)
	}
	require.NotEqual(t, out[0], out[256*17])
}

// TestRefusesOriginals: tensors that are no model of this layout are an error, before memory is taken for what they say.
func TestRefusesOriginals(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	shape := func(of string, to ...int) func(*amp.Tensor, []float32) bool {
		return func(t *amp.Tensor, _ []float32) bool {
			if t.Name == of {
				t.Shape = to
			}
			return true
		}
	}
	first := func(change func([]float32)) func(*amp.Tensor, []float32) bool {
		return func(t *amp.Tensor, x []float32) bool {
			if strings.HasSuffix(t.Name, "running_var") {
				change(x)
			}
			return true
		}
	}
	for name, c := range map[string]struct {
		size   string
		change func(*amp.Tensor, []float32) bool
		target error
	}{
		"no number":   {size: "large", target: snug.ErrCorrupt},
		"no size":     {size: "0", target: snug.ErrConfig},
		"odd size":    {size: "168", target: snug.ErrConfig},
		"vast size":   {size: "9223372036854775792", target: snug.ErrConfig},
		"below 0":     {size: "-160", target: snug.ErrConfig},
		"large size":  {size: "1048576", target: snug.ErrConfig},
		"no encoder":  {change: func(t *amp.Tensor, _ []float32) bool { return !strings.HasPrefix(t.Name, "image_") }, target: snug.ErrConfig},
		"no decoder":  {change: func(t *amp.Tensor, _ []float32) bool { return !strings.HasPrefix(t.Name, "mask_") }, target: snug.ErrConfig},
		"no prompts":  {change: func(t *amp.Tensor, _ []float32) bool { return !strings.HasPrefix(t.Name, "prompt_") }, target: snug.ErrConfig},
		"no norm":     {change: func(t *amp.Tensor, _ []float32) bool { return !strings.HasSuffix(t.Name, "running_mean") }, target: snug.ErrConfig},
		"no stage":    {change: func(t *amp.Tensor, _ []float32) bool { return !strings.HasPrefix(t.Name, "image_encoder.layers.2") }, target: snug.ErrConfig},
		"variance":    {change: first(func(x []float32) { x[0] = -1 }), target: snug.ErrCorrupt},
		"no variance": {change: first(func(x []float32) { x[0] = float32(math.NaN()) }), target: snug.ErrCorrupt},
		"taps":        {change: shape("image_encoder.patch_embed.seq.0.c.weight", 4, 27, 1, 1), target: snug.ErrShape},
		"dimensions":  {change: shape("image_encoder.patch_embed.seq.0.c.weight", 4, 27), target: snug.ErrConfig},
		"biases":      {change: shape("image_encoder.layers.1.blocks.0.attn.attention_biases", 49, 2), target: snug.ErrConfig},
		"heads":       {change: shape("image_encoder.layers.1.blocks.0.attn.attention_biases", 98, 1), target: snug.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			if c.size == "" {
				c.size = "160"
			}
			if c.change == nil {
				c.change = func(*amp.Tensor, []float32) bool { return true }
			}
			rewrite(t, tiny, path, map[string]string{sizeName: c.size}, c.change)
			_, err := OpenEncoder(path, layers.Options{})
			if c.target == nil {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, c.target)
		})
	}
	c := TinyViT()
	for name, change := range map[string]func(*EncoderConfig){
		"type":   func(e *EncoderConfig) { e.Type = "swin" },
		"stages": func(e *EncoderConfig) { e.Stages = nil },
		"many":   func(e *EncoderConfig) { e.Stages = make([]Stage, 63) },
		"width":  func(e *EncoderConfig) { e.Stages = append([]Stage{{Width: math.MaxInt, Hidden: 1}}, e.Stages[1:]...) },
		"hidden": func(e *EncoderConfig) { e.Stages = append([]Stage{{Width: 64, Hidden: -1}}, e.Stages[1:]...) },
		"windows": func(e *EncoderConfig) {
			e.Stages = append([]Stage{e.Stages[0], {64, 1, 64, 1, math.MaxInt}}, e.Stages[2:]...)
		},
		"heads": func(e *EncoderConfig) { e.Stages = append([]Stage{e.Stages[0], {64, 1, 64, 0, 7}}, e.Stages[2:]...) },
		"patch": func(e *EncoderConfig) { e.Patch = 8 },
	} {
		wrong := c
		change(&wrong.Encoder)
		require.ErrorIs(t, Create(t.TempDir(), wrong, 1), snug.ErrConfig, name)
	}
	_, err := Open("../testdata/sam/rel/model.safetensors", Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestTinySaveOfAnotherFile: a file that has changed since the model was opened is not mixed with it.
func TestTinySaveOfAnotherFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "model.safetensors")
	all := func(*amp.Tensor, []float32) bool { return true }
	rewrite(t, tiny, path, map[string]string{sizeName: "160"}, all)
	m, err := Open(path, Options{})
	require.NoError(t, err)
	rewrite(t, tiny, path, map[string]string{sizeName: "320"}, all)
	require.ErrorIs(t, m.Save(filepath.Join(t.TempDir(), "saved")), snug.ErrCorrupt)
}
