package train

import (
	"context"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// averagedForms are the ways to hold the parameters that train.
func averagedForms(t *testing.T) map[string]func() (*toy, Options) {
	form := func(w snug.DType, change func(o *Options)) func() (*toy, Options) {
		return func() (*toy, Options) {
			o := Options{Optimizer: quant8.ScheduleFree{Beta1: 0.8, WeightDecay: 0.1}, Schedule: Linear(0.02, 1, 3, 0), Clip: 1}
			change(&o)
			return newToy(t, w, snug.F32), o
		}
	}
	return map[string]func() (*toy, Options){
		"f32":   form(snug.F32, func(o *Options) { o.StateBits = 8 }),
		"full":  form(snug.BF16, func(*Options) {}),
		"split": form(snug.BF16, func(o *Options) { o.Masters = amp.SplitMaster }),
		"none":  form(snug.BF16, func(o *Options) { o.Masters = amp.NoMaster }),
		"f16":   form(snug.F16, func(*Options) {}),
		"pages": form(snug.BF16, func(o *Options) {
			store, err := offload.Open(t.TempDir(), offload.Options{})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			o.Storage, o.Chunk, o.StateBits = store, 4096, 8
		}),
	}
}

// TestAverages: evaluations and checkpoints change no bit of a run, Evaluate and Close leave the averages in the model, and
// a checkpoint that is written meanwhile has the parameters that train.
func TestAverages(t *testing.T) {
	ctx := context.Background()
	for name, form := range averagedForms(t) {
		t.Run(name, func(t *testing.T) {
			m, o := form()
			plain := newTrainer(t, m, o)
			for plain.Step() < 6 {
				_, err := plain.Train(ctx, steps(plain.Step()))
				require.NoError(t, err)
			}
			trains := m.bits()
			require.NoError(t, plain.Average())
			want := m.bits()
			require.NotEqual(t, trains["w"], want["w"])
			require.NoError(t, plain.gradients.average(false))
			require.Equal(t, trains, m.bits(), "the bits of training are back")
			require.NoError(t, plain.Close())
			require.Equal(t, want, m.bits(), "Close leaves averages")

			dir := t.TempDir()
			for _, end := range []int{2, 3, 6} { // goes on
				m, o := form()
				o.Dir, o.SaveEvery = dir, 2
				tr := newTrainer(t, m, o)
				for tr.Step() < end {
					_, err := tr.Evaluate(ctx, slices.Values(steps(90)))
					require.NoError(t, err)
					_, err = tr.Train(ctx, steps(tr.Step()))
					require.NoError(t, err)
				}
				_, err := tr.Evaluate(ctx, slices.Values(steps(90)))
				require.NoError(t, err)
				averages := m.bits()
				require.NoError(t, tr.Save(ctx))
				require.Equal(t, averages, m.bits(), "after Save")
				require.NoError(t, tr.Close())
				require.Equal(t, averages, m.bits(), "after Close")
				if end == 6 {
					require.Equal(t, want, averages)
				}
			}
		})
	}
}

// TestAverageOfOthers: other optimizers evaluate what they train.
func TestAverageOfOthers(t *testing.T) {
	m := newToy(t, snug.BF16, snug.F32)
	tr := newTrainer(t, m, Options{})
	trainTo(t, tr, 2)
	before := m.bits()
	require.NoError(t, tr.Average())
	require.False(t, tr.averaged)
	require.Equal(t, before, m.bits())
	require.NoError(t, tr.Close())
	require.ErrorIs(t, tr.Average(), snug.ErrConfig)
	_, err := New(Model[[]int](newToy(t, snug.F32, snug.F32)), Options{Optimizer: quant8.ScheduleFree{}, Gradients: plan.InBackward})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "does not go with the optimizer schedule-free")
}
