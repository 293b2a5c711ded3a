package vision_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// TestEncoderFeatures: a model without its encoder computes of features that an encoder computed, one image at a time, the bits that the
// whole model computes of pixels.
func TestEncoderFeatures(t *testing.T) {
	for _, name := range []string{"llava", "gemma3", "smolvlm", "llava_next", "qwen2_5_vl", "qwen3_vl"} {
		t.Run(name, func(t *testing.T) {
			ctx, text := context.Background(), transformer.Options{DType: snug.F32}
			whole, _, b := openGoldenModel(t, name, vision.ModelOptions{Text: text})
			want, err := whole.Evaluate(ctx, b)
			require.NoError(t, err)
			e, err := vision.OpenEncoder("testdata/models/"+name, layers.Options{DType: snug.F32})
			require.NoError(t, err)
			cached := vision.Batch{Text: b.Text}
			for _, x := range b.Images {
				rows, err := e.Rows(x.Layout)
				require.NoError(t, err)
				f, err := e.Encode(ctx, []vision.Pixels{x})
				require.NoError(t, err)
				require.Zero(t, f[0].Values.Len()%rows)
				cached.Features = append(cached.Features, f...)
			}
			require.NoError(t, e.Close())
			m, err := vision.OpenModel("testdata/models/"+name, vision.ModelOptions{Text: text, NoEncoder: true})
			require.NoError(t, err)
			require.Nil(t, m.Encoder)
			got, err := m.Evaluate(ctx, cached)
			require.NoError(t, err)
			require.Equal(t, want, got)

			half := make([]float32, cached.Features[0].Values.Len())
			require.NoError(t, amp.Cast(half, cached.Features[0].Values))
			for name, of := range map[string]func(b *vision.Batch){
				"pixels":           func(b *vision.Batch) { b.Features, b.Images = nil, make([]vision.Pixels, 3) },
				"both":             func(b *vision.Batch) { b.Images = make([]vision.Pixels, 3) },
				"features too few": func(b *vision.Batch) { b.Features = b.Features[:2] },
				"none":             func(b *vision.Batch) { b.Features = []vision.Features{} },
				"half of an image": func(b *vision.Batch) {
					b.Features = append([]vision.Features{{Values: snug.ViewOf(half[:len(half)/2])}}, b.Features[1:]...)
				},
				"zero features": func(b *vision.Batch) { b.Features = make([]vision.Features, 3) },
			} {
				t.Run(name, func(t *testing.T) {
					b := cached
					of(&b)
					_, err := m.Evaluate(ctx, b)
					require.True(t, errors.Is(err, snug.ErrShape) || errors.Is(err, snug.ErrConfig), err)
				})
			}
			require.NoError(t, m.Close())
			_, err = e.Encode(ctx, b.Images)
			require.ErrorIs(t, err, snug.ErrConfig) // closed
		})
	}
	var none *vision.Encoder
	_, err := none.Encode(context.Background(), nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = new(vision.Encoder).Rows(vision.Layout{})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestMaxPixels: a limit of pixels makes images smaller, as max_pixels of transformers does, and is refused where all images have one size.
func TestMaxPixels(t *testing.T) {
	in, err := vision.OpenInput("testdata/tune/qwen2_5_vl")
	require.NoError(t, err)
	for pixels, want := range map[int][2]int{16: {1, 1}, 64: {2, 2}, 256: {4, 4}, 1 << 20: {25, 25}} {
		less, err := in.MaxPixels(pixels)
		require.NoError(t, err)
		l, err := less.Processor.Layout(100, 100)
		require.NoError(t, err)
		require.Equal(t, [2]int{l.Grid[1] / 2, l.Grid[2] / 2}, want, pixels)
	}
	l, err := in.Processor.Layout(100, 100) // which has not changed
	require.NoError(t, err)
	require.Equal(t, [3]int{1, 8, 8}, l.Grid)
	for _, pixels := range []int{-1, 0, 15} {
		_, err := in.MaxPixels(pixels)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	other, err := vision.OpenInput("testdata/tune/llava")
	require.NoError(t, err)
	_, err = other.MaxPixels(1 << 20)
	require.ErrorContains(t, err, "CLIPImageProcessor: the size of images is that of the model")
	_, err = (*vision.Input)(nil).MaxPixels(64)
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = (*vision.Processor)(nil).MaxPixels(64)
	require.ErrorIs(t, err, snug.ErrConfig)
}
