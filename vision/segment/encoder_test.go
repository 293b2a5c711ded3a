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
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/vision/segment"
)

const folders = "../testdata/sam"

// models are those of transformers' layout, and tiny, of TinySAM's.
var models = []string{"rel", "plain", "tiny"}

// numbers are those of testdata/towers.py.
func numbers(number, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		at := uint32(i + number*97531)
		x[i] = float32(float64(at*at*2654435761+at*40503)/(1<<31) - 1)
	}
	return x
}

// golden has what transformers computes.
type golden struct {
	Features [2]float64
	Photo    [2]float64
	Steps    []float64
	Cases    map[string]struct {
		Masks     [2]float64
		Scores    []float64
		Loss      float64
		Gradients map[string][2]float64
	}
}

func readGolden(t *testing.T, name string) (g golden) {
	data, err := os.ReadFile(filepath.Join(folders, name, "golden.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &g))
	return g
}

// like compares the norm of x, and its product with numbers, in units of the norm.
func like(t *testing.T, want [2]float64, x []float32, number int, tolerance float64, what string) {
	t.Helper()
	square, dot := 0., 0.
	for i, v := range numbers(number, len(x)) {
		square, dot = square+float64(x[i])*float64(x[i]), dot+float64(x[i])*float64(v)
	}
	require.InDelta(t, want[0], math.Sqrt(square), tolerance*want[0], what)
	require.InDelta(t, want[1], dot, tolerance*want[0], what)
}

func images(c segment.Config) (list [][]float32) {
	x := numbers(1000, 2*c.Encoder.Channels*c.Encoder.Image*c.Encoder.Image)
	return [][]float32{x[:len(x)/2], x[len(x)/2:]}
}

func encode(t *testing.T, dir string, o layers.Options) []float32 {
	e, err := segment.OpenEncoder(dir, o)
	require.NoError(t, err)
	out := make([]float32, 2*e.Config().FeatureLen())
	require.NoError(t, e.Encode(context.Background(), out, images(e.Config())))
	require.NoError(t, e.Close())
	return out
}

// TestEncoderGolden: features are those of transformers.
func TestEncoderGolden(t *testing.T) {
	for _, name := range models {
		t.Run(name, func(t *testing.T) {
			like(t, readGolden(t, name).Features, encode(t, filepath.Join(folders, name), layers.Options{}), 3000, 1e-5, "features")
		})
	}
}

// TestFeatureFiles: features of a file are those of the encoder, rounded to its type.
func TestFeatureFiles(t *testing.T) {
	dir, path := filepath.Join(folders, "rel"), filepath.Join(t.TempDir(), "image.safetensors")
	e, err := segment.OpenEncoder(dir, layers.Options{})
	require.NoError(t, err)
	want, image := make([]float32, e.Config().FeatureLen()), images(e.Config())[0]
	require.NoError(t, e.Encode(context.Background(), want, [][]float32{image}))
	for _, dt := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
		require.NoError(t, e.EncodeFile(context.Background(), path, dt, image))
		v, err := segment.ReadFeatures(path)
		require.NoError(t, err)
		require.Equal(t, dt, v.DType())
		got := make([]float32, v.Len())
		require.NoError(t, amp.Cast(snug.ViewOf(got), v))
		for i := range want {
			require.InEpsilon(t, want[i], got[i], 1./128)
		}
	}
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for i := range text { // each byte is of the header or of the features
		text[i] ^= 0x10
		require.NoError(t, os.WriteFile(path, text, 0o600))
		v, err := segment.ReadFeatures(path)
		if i >= len(text)-2*len(want) {
			require.ErrorIs(t, err, snug.ErrCorrupt, i)
		} else if err == nil { // what nothing reads, such as the name of the checksum's file
			require.Equal(t, len(want), v.Len(), i)
		}
		text[i] ^= 0x10
	}
	nan := slices.Clone(image)
	nan[3] = float32(math.NaN())
	require.ErrorIs(t, e.EncodeFile(context.Background(), path, snug.F16, nan), snug.ErrNonFinite)
	require.ErrorIs(t, e.EncodeFile(context.Background(), path, snug.DType(99), image), snug.ErrDType)
	require.ErrorIs(t, e.EncodeFile(context.Background(), path, snug.F16, image[1:]), snug.ErrShape)
	_, err = segment.ReadFeatures(filepath.Join(dir, "model.safetensors"))
	require.ErrorIs(t, err, snug.ErrCorrupt)
}
