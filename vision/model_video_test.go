package vision_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// videoModels are the folders with a video.json.
var videoModels = []string{"qwen2_vl", "qwen2_5_vl", "qwen3_vl"}

// openVideoModel opens a model of models.py whose text has videos, with the sequences of video.json: a video and an image, and a video.
func openVideoModel(t *testing.T, name string) (*vision.Model, goldenModel, vision.Batch) {
	data, err := os.ReadFile(filepath.Join("testdata/models", name, "video.json"))
	require.NoError(t, err)
	var g struct {
		goldenModel
		Videos    [2][3]int
		Image     [3]int
		Intervals []float64
	}
	require.NoError(t, json.Unmarshal(data, &g))
	m, err := vision.OpenModel(edited(t, "models/"+name, map[string]string{"video_token_id": "10"}), vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
	require.NoError(t, err)
	require.EqualValues(t, 10, m.VideoToken())
	b := vision.Batch{Text: transformer.Batch{Starts: []int{0}}}
	for _, tokens := range g.Tokens {
		b.Text.Tokens = append(b.Text.Tokens, tokens...)
		for _, next := range append(tokens[1:len(tokens):len(tokens)], -100) {
			if next == m.Token() || next == m.VideoToken() {
				next = -100
			}
			b.Text.Labels = append(b.Text.Labels, next)
		}
		b.Text.Starts = append(b.Text.Starts, len(b.Text.Tokens))
	}
	c := m.Encoder.Config()
	for i, l := range []vision.Layout{
		{Grid: g.Videos[0], Merge: 2, Frames: 2 * g.Videos[0][0], Interval: g.Intervals[0]}, {Grid: g.Image, Merge: 2}, {Grid: g.Videos[1], Merge: 2, Frames: 2*g.Videos[1][0] - 1, Interval: g.Intervals[1]},
	} {
		b.Images = append(b.Images, vision.Pixels{Layout: l, Values: numbers(1000+i, l.Grid[0]*l.Grid[1]*l.Grid[2]*c.Channels*2*c.Patch*c.Patch)})
	}
	return m, g.goldenModel, b
}

// TestModelVideos: logits, the loss and all gradients of two packed sequences with videos and an image are those of transformers.
func TestModelVideos(t *testing.T) {
	for _, name := range videoModels {
		t.Run(name, func(t *testing.T) {
			m, golden, b := openVideoModel(t, name)
			matches(t, m, &golden, b)
		})
	}
}

// TestModelWritesOfVideos: what follows a prompt with a video is what transformers' generate writes.
func TestModelWritesOfVideos(t *testing.T) {
	for _, name := range videoModels {
		t.Run(name, func(t *testing.T) {
			m, golden, b := openVideoModel(t, name)
			ctx := context.Background()
			g, err := m.Text.Generate(transformer.GenerateOptions{Chunk: 5})
			require.NoError(t, err)
			for i, tokens := range golden.Tokens {
				g.Reset()
				require.NoError(t, m.Prompt(ctx, g, vision.Batch{Text: transformer.Batch{Tokens: tokens}, Images: [][]vision.Pixels{b.Images[:2], b.Images[2:]}[i]}))
				for _, want := range golden.Written[i].Tokens {
					token, err := g.Next(ctx)
					require.NoError(t, err)
					require.Equal(t, want, token)
				}
				near(t, golden.Written[i].Logits, g.Logits(), 5e-6)
			}
		})
	}
}

// TestModelFeaturesOfVideos: features in a cache give the same loss, and each is bound to the frames and the layout.
func TestModelFeaturesOfVideos(t *testing.T) {
	for _, name := range videoModels {
		t.Run(name, func(t *testing.T) {
			m, _, b := openVideoModel(t, name)
			ctx := context.Background()
			want, err := m.Evaluate(ctx, b)
			require.NoError(t, err)
			dir := edited(t, "models/"+name, map[string]string{"video_token_id": "10"})
			require.NoError(t, os.WriteFile(filepath.Join(dir, "preprocessor_config.json"), []byte(`{"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen3VLProcessor"}`), 0o600))
			in, err := vision.OpenInput(dir)
			require.NoError(t, err)
			require.Equal(t, m.VideoToken(), in.VideoToken())
			require.Equal(t, name == "qwen3_vl", in.Axes().Apart)
			store, err := offload.Open(t.TempDir(), offload.Options{})
			require.NoError(t, err)
			cache, err := in.NewCache(store, vision.CacheOptions{DType: snug.F32})
			require.NoError(t, err)
			seen := vision.Batch{Text: b.Text}
			for i, x := range b.Images {
				list, err := m.Encoder.Encode(ctx, []vision.Pixels{x})
				require.NoError(t, err)
				sum := [32]byte{byte(i)}
				require.NoError(t, cache.Put(sum, list[0]))
				require.False(t, cache.Has([32]byte{byte(i + 1)}, x.Layout))
				other := x.Layout
				other.Frames += 2
				require.False(t, cache.Has(sum, other))
				f, err := cache.Get(sum, x.Layout)
				require.NoError(t, err)
				seen.Features = append(seen.Features, f)
			}
			got, err := m.Evaluate(ctx, seen)
			require.NoError(t, err)
			require.Equal(t, want, got)
			require.NoError(t, store.Close())
		})
	}
}

// TestModelRefusesVideos: kinds that do not fit the placeholders, and videos of models that take none.
func TestModelRefusesVideos(t *testing.T) {
	m, _, b := openVideoModel(t, "qwen2_5_vl")
	for name, of := range map[string]func(b *vision.Batch){
		"an image for a video":  func(b *vision.Batch) { b.Images[0].Frames = 0 },
		"a video for an image":  func(b *vision.Batch) { b.Images[1].Frames = 2 },
		"another order":         func(b *vision.Batch) { slices.Reverse(b.Images) },
		"other times":           func(b *vision.Batch) { b.Images[0].Grid[0] = 2 },
		"intervals without end": func(b *vision.Batch) { b.Images[0].Interval = 1e12 },
		"a video too few":       func(b *vision.Batch) { b.Images = b.Images[:2] },
	} {
		t.Run(name, func(t *testing.T) {
			b := b
			b.Images = slices.Clone(b.Images)
			of(&b)
			_, err := m.Evaluate(t.Context(), b)
			require.ErrorIs(t, err, snug.ErrShape)
		})
	}
	for _, name := range []string{"qwen2_vl", "llava"} { // the token of videos is none of the text
		m, _, b := openGoldenModel(t, name, vision.ModelOptions{Text: transformer.Options{DType: snug.F32}})
		require.EqualValues(t, -1, m.VideoToken())
		b.Images[0].Frames = 2
		_, err := m.Evaluate(t.Context(), b)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "frames as images")
	}
	var none *vision.Model
	require.EqualValues(t, -1, none.VideoToken())
	var in *vision.Input
	require.EqualValues(t, -1, in.VideoToken())
	require.Zero(t, in.Axes())
}
