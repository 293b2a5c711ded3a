package vision_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/transformer"
	"github.com/snug-ml/snug/vision"
)

// TestInputEncoder: the parameters of the encoder are those that train in a model, and what a pass takes beside them grows with the rows of images.
func TestInputEncoder(t *testing.T) {
	list, err := filepath.Glob("testdata/tune/*/config.json")
	require.NoError(t, err)
	require.NotEmpty(t, list)
	for _, path := range list {
		dir := filepath.Dir(path)
		if _, err := os.Stat(filepath.Join(dir, "processor_config.json")); err != nil {
			continue
		}
		t.Run(filepath.Base(dir), func(t *testing.T) {
			in, err := vision.OpenInput(dir)
			require.NoError(t, err)
			trained := func(o vision.ModelOptions) (n int) {
				o.Text = transformer.Options{DType: snug.F32}
				m, err := vision.OpenModel(dir, o)
				require.NoError(t, err)
				for _, v := range m.Trainable() {
					n += v.Len()
				}
				require.NoError(t, m.Close())
				return n
			}
			want := trained(vision.ModelOptions{TrainEncoder: func(string) bool { return true }}) - trained(vision.ModelOptions{NoEncoder: true})
			n := 0
			for _, shape := range in.Encoder() {
				size := 1
				for _, d := range shape {
					size *= d
				}
				n += size
			}
			require.Equal(t, want, n)
			one := in.EncoderTraining(64, snug.F32)
			require.Positive(t, one)
			require.Less(t, in.EncoderTraining(64, snug.BF16), one)
			require.InEpsilon(t, 4*one, in.EncoderTraining(256, snug.F32), 0.1)
			require.Zero(t, in.EncoderTraining(0, snug.F32))
			require.Zero(t, in.EncoderTraining(-1, snug.F32))
			require.Positive(t, in.EncoderTraining(math.MaxInt, snug.F32))
		})
	}
	var none *vision.Input
	require.Zero(t, none.EncoderTraining(1, snug.F32))
	require.Zero(t, new(vision.Input).EncoderTraining(1, snug.F32))
	for range none.Encoder() {
		t.Fatal("an Input that is nil has no encoder")
	}
}
