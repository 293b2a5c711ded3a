package gomlx_test

import (
	"errors"
	"io"
	"math"
	"sync"
	"testing"

	"github.com/gomlx/gomlx/pkg/ml/context"
	"github.com/gomlx/gomlx/pkg/ml/context/checkpoints"
	gotrain "github.com/gomlx/gomlx/pkg/ml/train"
	"github.com/gomlx/gomlx/pkg/ml/train/losses"
	"github.com/gomlx/gomlx/pkg/ml/train/optimizers"
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/integrations/gomlx"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/offload"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
	"github.com/stretchr/testify/require"
)

// adamW is GoMLX's AdamW: decay of the weights before the update.
var adamW = quant8.AdamW{Eps: 1e-7, WeightDecay: 0.004, DecayFirst: true}

// withGoMLX trains as GoMLX does, and returns the losses.
func withGoMLX(t testing.TB, model gotrain.ModelFn, steps int) (list []float64) {
	t.Helper()
	ctx := seeded(t)
	tr := gotrain.NewTrainer(backend(t), ctx, model, losses.MeanSquaredError,
		optimizers.Adam().WeightDecay(0.004).Epsilon(1e-7).LearningRate(0.01).Done(), nil, nil)
	for step := range steps {
		b := batch(step, 0, rows)
		metrics, err := tr.TrainStep(nil, b.Inputs, b.Labels)
		require.NoError(t, err)
		list = append(list, float64(metrics[0].Value().(float32)))
	}
	return list
}

// TestAdamW: 32-bit AdamW has the losses of GoMLX's, with the same initial values and masks of dropout.
func TestAdamW(t *testing.T) {
	for name, model := range map[string]gotrain.ModelFn{"plain": perceptron, "averages": steady, "dropout": noisy} {
		t.Run(name, func(t *testing.T) {
			want := withGoMLX(t, model, 300)
			tr, ctx := newTrainer(t, model, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
			got := trainTo(t, tr, 300)
			worst := 0.0
			for i := range want {
				worst = max(worst, math.Abs(got[i]-want[i])/max(1, want[i]))
			}
			t.Logf("worst difference %.2g; losses %.5f to %.5f", worst, got[0], got[299])
			require.Less(t, worst, 1e-4)
			require.Less(t, got[299], got[0]/4)
			require.EqualValues(t, 300, optimizers.GetGlobalStep(ctx))
		})
	}
}

// TestStateBits: 8-bit state takes a quarter of the bytes, reaches the loss of 32 bits, and has the same bits in pages.
func TestStateBits(t *testing.T) {
	wide, _ := newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	want := trainTo(t, wide, 300)
	run := func(o gomlx.Options) ([]float64, map[string][]byte, int64) {
		o.Optimizer, o.StateBits, o.Chunk = adamW, 8, 4096
		tr, ctx := newTrainer(t, perceptron, batch(0, 0, rows), o)
		return trainTo(t, tr, 300), values(t, ctx), tr.Bytes()[meter.State]
	}
	got, plain, bytes := run(gomlx.Options{})
	const matrices, vectors = in*hidden + hidden*hidden, 2*hidden + hidden + 1 // vectors below 4096 elements keep 32 bits
	t.Logf("losses %.5f and %.5f; state of %d and %d bytes", want[299], got[299], wide.Bytes()[meter.State], bytes)
	require.EqualValues(t, 8*(matrices+vectors), wide.Bytes()[meter.State])
	require.Less(t, bytes, wide.Bytes()[meter.State]*45/100)
	require.InDelta(t, mean(want[250:]), mean(got[250:]), 0.1*mean(want[:10]))

	store, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 16 << 10})
	require.NoError(t, err)
	defer store.Close()
	losses, paged, pagedBytes := run(gomlx.Options{Storage: store})
	require.Equal(t, got, losses)
	require.Equal(t, plain, paged)
	require.Equal(t, bytes, pagedBytes)
}

func mean(list []float64) (sum float64) {
	for _, x := range list {
		sum += x / float64(len(list))
	}
	return sum
}

// TestMicroBatches: weighted micro-batches give the step of the whole batch.
func TestMicroBatches(t *testing.T) {
	whole, _ := newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	parts, _ := newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	for step := range 20 {
		w, err := whole.Train(t.Context(), []gomlx.Batch{batch(step, 0, rows)})
		require.NoError(t, err)
		p, err := parts.Train(t.Context(), []gomlx.Batch{batch(step, 0, 4), batch(step, 4, 5), batch(step, 5, 20), batch(step, 20, rows)})
		require.NoError(t, err)
		require.InDelta(t, w.Loss, p.Loss, 1e-5*max(1, w.Loss), "step %d", step)
		require.InDelta(t, w.Norm, p.Norm, 1e-4*max(1, w.Norm), "step %d", step)
		require.Equal(t, w.Targets, p.Targets)
	}
	// The weight is the caller's where it is set.
	b, c := batch(0, 0, 16), batch(0, 16, rows)
	b.Weight, c.Weight = 3, 1
	rb, err := whole.Evaluate(t.Context(), each(b))
	require.NoError(t, err)
	rc, err := whole.Evaluate(t.Context(), each(c))
	require.NoError(t, err)
	both, err := whole.Evaluate(t.Context(), each(b, c))
	require.NoError(t, err)
	require.InDelta(t, (3*rb.Mean()+rc.Mean())/4, both.Mean(), 1e-9)
}

func each(list ...gomlx.Batch) func(func(gomlx.Batch) bool) {
	return func(yield func(gomlx.Batch) bool) {
		for _, b := range list {
			if !yield(b) {
				return
			}
		}
	}
}

// TestResume: a run that stops in the middle ends with the bits of one that does not, with dropout, averages, 8-bit state,
// pages, 16-bit weights and a loss scale.
func TestResume(t *testing.T) {
	full := func(_ testing.TB, step int) gomlx.Batch { return batch(step, 0, rows) }
	for name, c := range map[string]struct {
		o     gomlx.Options
		paged bool
		batch func(testing.TB, int) gomlx.Batch
	}{
		"8 bits":     {gomlx.Options{StateBits: 8, Clip: 1}, false, full},
		"loss scale": {gomlx.Options{Scaler: &amp.ScalerOptions{Init: 0x1p127}, SkipNonFinite: true}, false, full},
		"one sweep":  {gomlx.Options{StateBits: 8, Gradients: plan.InBackward}, false, full},
		"bfloat16":   {gomlx.Options{StateBits: 8, Masters: amp.SplitMaster, Clip: 1}, true, low},
	} {
		t.Run(name, func(t *testing.T) {
			c.o.Optimizer, c.o.Chunk = adamW, 4096
			skipped := 0
			run := func(dir string, end int) (*gomlx.Trainer, []float64, map[string][]byte) {
				o := c.o
				if o.Dir = dir; dir != "" {
					o.SaveEvery = 7
				}
				if c.paged {
					store, err := offload.Open(t.TempDir(), offload.Options{HostLimit: 16 << 10})
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, store.Close()) })
					o.Storage = store
				}
				tr, ctx := newTrainer(t, noisy, c.batch(t, 0), o)
				require.EqualValues(t, tr.Step(), optimizers.GetGlobalStep(ctx))
				var list []float64
				for tr.Step() < end {
					r, err := tr.Train(t.Context(), []gomlx.Batch{c.batch(t, tr.Step())})
					require.NoError(t, err)
					list = append(list, r.Loss)
					if r.Skipped != "" {
						skipped++
					}
				}
				return tr, list, values(t, ctx)
			}
			_, want, end := run("", 30)
			require.Equal(t, c.o.Scaler != nil, skipped > 0)

			dir := t.TempDir()
			tr, _, _ := run(dir, 10) // the checkpoint is of step 7
			_, err := tr.Evaluate(t.Context(), each(c.batch(t, 99)))
			require.NoError(t, err)
			require.NoError(t, tr.Close())
			tr, got, final := run(dir, 30)
			require.Equal(t, 30, tr.Step())
			require.Equal(t, want[7:], got)
			require.Equal(t, end, final)
		})
	}
}

// TestHalf: bfloat16 variables with master weights in several forms.
func TestHalf(t *testing.T) {
	for _, form := range []amp.MasterForm{amp.FullMaster, amp.SplitMaster, amp.NoMaster} {
		o := gomlx.Options{Optimizer: adamW, StateBits: 8, Masters: form}
		tr, ctx := newTrainer(t, perceptron, low(t, 0), o)
		var list []float64
		for tr.Step() < 150 {
			r, err := tr.Train(t.Context(), []gomlx.Batch{low(t, tr.Step())})
			require.NoError(t, err)
			list = append(list, r.Loss)
		}
		t.Logf("%v: %.4f to %.4f", form, mean(list[:10]), mean(list[140:]))
		require.Less(t, mean(list[140:]), mean(list[:10])/3)
		if form == amp.FullMaster {
			require.EqualValues(t, 4*count(ctx), tr.Bytes()[meter.Masters])
		}
	}
}

func count(ctx *context.Context) (n int) {
	for v := range ctx.IterVariables() {
		if v.Trainable {
			n += v.Shape().Size()
		}
	}
	return n
}

// TestRun: Run trains on a dataset, begins it again, and leaves out what a checkpoint has.
func TestRun(t *testing.T) {
	first := func() gomlx.Batch {
		b, err := gomlx.Next(&stream{end: 1})
		require.NoError(t, err)
		return b
	}
	o := gomlx.Options{Optimizer: adamW, StateBits: 8}
	tr, ctx := newTrainer(t, noisy, first(), o)
	require.NoError(t, tr.Run(t.Context(), &stream{end: 5}, 12, 3, nil))
	want := values(t, ctx)

	o.Dir = t.TempDir()
	tr, _ = newTrainer(t, noisy, first(), o)
	stop := errors.New("stop")
	err := tr.Run(t.Context(), &stream{end: 5}, 12, 3, func(r gomlx.Report) error {
		if r.Step == 4 {
			return errors.Join(stop, tr.Save(t.Context()))
		}
		return nil
	})
	require.ErrorIs(t, err, stop)
	require.NoError(t, tr.Close())
	tr, ctx = newTrainer(t, noisy, first(), o)
	require.NoError(t, tr.Run(t.Context(), &stream{end: 5}, 12, 3, nil))
	require.Equal(t, want, values(t, ctx))

	require.ErrorIs(t, tr.Run(t.Context(), &stream{}, 13, 1, nil), snug.ErrConfig)
	require.ErrorIs(t, tr.Run(t.Context(), nil, 13, 1, nil), snug.ErrConfig)
	require.ErrorIs(t, tr.Run(t.Context(), &stream{end: 1}, 13, 0, nil), snug.ErrConfig)
	_, err = gomlx.Next(&stream{})
	require.Equal(t, io.EOF, err)
}

// TestRanks: two ranks make the steps of one.
func TestRanks(t *testing.T) {
	one, _ := newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	want := trainTo(t, one, 5)
	reducers, err := accum.Local(t.Context(), 2)
	require.NoError(t, err)
	var wait sync.WaitGroup
	got, ends := [2][]float64{}, [2]*context.Context{}
	for rank, r := range reducers {
		ctx, b := seeded(t), backend(t)
		ends[rank] = ctx
		wait.Go(func() {
			tr, err := gomlx.New(b, ctx, perceptron, losses.MeanSquaredError, batch(0, 0, rows/2), gomlx.Options{Optimizer: adamW, Ranks: gomlx.Ranks{Reducer: r}})
			for step := 0; step < 5 && err == nil; step++ {
				var report gomlx.Report
				report, err = tr.Train(t.Context(), []gomlx.Batch{batch(step, rank*rows/2, (rank+1)*rows/2)})
				got[rank] = append(got[rank], report.Loss)
			}
			if err == nil {
				err = tr.Close()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	require.Equal(t, got[0], got[1])
	require.Equal(t, values(t, ends[0]), values(t, ends[1]))
	require.InDeltaSlice(t, want, got[0], 1e-4)
}

// TestTheirCheckpoints: GoMLX's checkpoints hold the variables, and a Trainer goes on from them.
func TestTheirCheckpoints(t *testing.T) {
	dir := t.TempDir()
	tr, ctx := newTrainer(t, perceptron, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	trainTo(t, tr, 4)
	save, err := checkpoints.Build(ctx).Dir(dir).Done()
	require.NoError(t, err)
	require.NoError(t, save.Save())
	want, err := tr.Evaluate(t.Context(), each(batch(9, 0, rows)))
	require.NoError(t, err)

	ctx = seeded(t)
	_, err = checkpoints.Build(ctx).Dir(dir).Done()
	require.NoError(t, err)
	tr, err = gomlx.New(backend(t), ctx.Reuse(), perceptron, losses.MeanSquaredError, batch(0, 0, rows), gomlx.Options{Optimizer: adamW})
	require.NoError(t, err)
	defer tr.Close()
	got, err := tr.Evaluate(t.Context(), each(batch(9, 0, rows)))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.EqualValues(t, 4, optimizers.GetGlobalStep(ctx)) // which goes on
	trainTo(t, tr, 1)
	require.EqualValues(t, 5, optimizers.GetGlobalStep(ctx))
}
