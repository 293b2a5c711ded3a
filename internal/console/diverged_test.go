package console

import (
	"bytes"
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/train"
)

// A run has diverged after 10 steps in a row whose loss is not finite, or 10 that are skipped, 32 with a loss scale.
// Fewer say so only at the end, where nothing else shows that the weights are sound.
func TestWatch(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, c := range []struct {
		name           string
		losses         []float64 // of one step after the other
		skipped        bool      // all steps whose loss is not the first one
		scale          float32
		now            string // after the last step
		end, endWithNo string // at the end, with and without a finite loss on held-out data
	}{
		{"finite", []float64{3, 2, 1}, false, 1, "", "", ""},
		{"one", []float64{3, nan}, false, 1, "", "", "the loss is not finite in step 2"},
		{"nine", []float64{3, inf, nan, inf, nan, nan, nan, nan, nan, nan}, true, 65536, "", "", "the loss is not finite in steps 2 to 10"},
		{"ten", []float64{3, nan, nan, nan, nan, nan, nan, nan, nan, nan, nan}, true, 65536, "the loss is not finite in steps 2 to 11", "the loss is not finite in steps 2 to 11", "the loss is not finite in steps 2 to 11"},
		{"with a pause", []float64{3, nan, nan, nan, nan, nan, 3, nan, nan, nan, nan, nan, 3}, false, 1, "", "", ""},
		{"two skipped", []float64{3, 4, 4}, true, 1, "", "gradients are not finite in steps 2 to 3", "gradients are not finite in steps 2 to 3"},
		{"two skipped with a scale", []float64{3, 4, 4}, true, 65536, "", "", ""},
		{"ten skipped", []float64{3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}, true, 1, "gradients are not finite in steps 2 to 11", "gradients are not finite in steps 2 to 11", "gradients are not finite in steps 2 to 11"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, now := &watch{}, ""
			for i, loss := range c.losses {
				r := train.Report{Step: i + 1, Loss: loss, Scale: c.scale}
				if c.skipped && loss != c.losses[0] {
					r.Skipped = "a gradient"
				}
				now = w.add(r)
			}
			require.Equal(t, c.now, now)
			require.Equal(t, c.end, w.end(true))
			require.Equal(t, c.endWithNo, w.end(false))
		})
	}
	w := &watch{}
	for step := range 31 {
		require.Empty(t, w.add(train.Report{Step: step + 1, Loss: 3, Scale: 4, Skipped: "a gradient"}))
	}
	require.Equal(t, "gradients are not finite in steps 1 to 32", w.add(train.Report{Step: 32, Loss: 3, Scale: 4, Skipped: "a gradient"}))
}

// A run that diverges ends with the checkpoint from before, and says so; so does one whose loss on held-out data is not
// finite at the end.
func TestTrainingDiverges(t *testing.T) {
	nan := float32(math.NaN())
	for _, c := range []struct {
		name    string
		bad     int     // the first step whose data are not finite, from 0
		heldOut float32 // after half of the run
		skips   bool
		want    string
		saved   int
	}{
		{"losses", 7, 1.5, true, "the run has diverged: the loss is not finite in steps 8 to 17; the last step that was not so is 7, with the loss ", 6},
		{"an error", 7, 1.5, false, "the run has diverged: train: step 8: w[0] = NaN; the last step that was not so is 7, with the loss ", 6},
		{"held-out data", 100, nan, true, "the run has diverged: the loss on held-out samples after step 20 is not finite; the last step that was not so is 20, with the loss ", 18},
		{"the last step", 19, 1.5, true, "", 20}, // a finite loss on held-out data says that the weights are sound
	} {
		t.Run(c.name, func(t *testing.T) {
			tr, err := train.New[float32](line{[]float32{4}}, train.Options{Schedule: train.Constant(0.1), Checkpoints: train.Checkpoints{Dir: t.TempDir(), SaveEvery: 3}, SkipNonFinite: c.skips})
			require.NoError(t, err)
			var b bytes.Buffer
			_, err = Training[float32]{
				Trainer: tr, Steps: 20, Saves: true, Progress: NewProgress(&b, &b, 20), Stop: Stop{context.Background(), context.Background()},
				Batches: func(step int) ([]float32, error) {
					if step >= c.bad {
						return []float32{nan}, nil
					}
					return []float32{1, 2}, nil
				},
				Tokens: func(float32) int { return 3 }, After: func(train.Report) (string, error) { return "", nil },
				HeldOut: func(yield func(float32, error) bool) {
					x := float32(1.5)
					if tr.Step() > 10 {
						x = c.heldOut
					}
					yield(x, nil)
				},
			}.Run()
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.want)
				require.ErrorIs(t, err, snug.ErrNonFinite)
				require.Regexp(t, `the checkpoint of step \d+ stays$`, err.Error())
			}
			require.Equal(t, c.saved, tr.Saved())
			require.NoError(t, tr.Close())
		})
	}
}
