package train

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/quant8"
)

// backwardForms are options of steps in the backward pass.
func backwardForms() map[string]Options {
	return map[string]Options{
		"one": {Gradients: plan.InBackward}, "clipped": {Gradients: plan.InBackward, Clip: 0.3},
		"folded": {Gradients: plan.Folded}, "folded, clipped": {Gradients: plan.Folded, Clip: 0.3, Optimizer: quant8.SGD{}},
	}
}

// A step in the backward pass that fails before it has changed anything, for example because its context ends, may be
// run again, also after a checkpoint in another process, with the bits of one that has not failed.
//
//check:in race
func TestStepsThatFail(t *testing.T) {
	ctx := context.Background()
	for name, o := range backwardForms() {
		t.Run(name, func(t *testing.T) {
			m := newToy(t, snug.F32, snug.F32)
			tr := newTrainer(t, m, o)
			for tr.Step() < 4 {
				_, err := tr.Train(ctx, batchesFor(o, tr.Step()))
				require.NoError(t, err)
			}
			want := m.bits()
			for _, bad := range []string{"w", ""} { // the first gradient of a pass is not finite, or it has none
				o.Dir = t.TempDir()
				m = newToy(t, snug.F32, snug.F32)
				tr = newTrainer(t, m, o)
				for step := range 4 {
					b := batchesFor(o, step)
					if m.poison = map[int]string{b[0][0]: bad}; bad == "" {
						m.fail = errors.New("ended")
					}
					before := m.bits()
					for range 2 {
						_, err := tr.Train(ctx, b)
						require.Error(t, err)
						require.Equal(t, before, m.bits())
					}
					if step%2 == 1 {
						require.NoError(t, tr.Save(ctx))
						require.NoError(t, tr.Close())
						m = newToy(t, snug.F32, snug.F32)
						tr = newTrainer(t, m, o)
						require.Equal(t, step, tr.Step())
					}
					m.poison, m.fail = nil, nil
					_, err := tr.Train(ctx, b)
					require.NoError(t, err)
				}
				require.Equal(t, want, m.bits(), bad)
			}
		})
	}
}

// A step that fails when it has changed something leaves the older checkpoints, from which the run goes on.
//
//check:in race
func TestStepsThatStop(t *testing.T) {
	ctx := context.Background()
	for name, o := range backwardForms() {
		for _, bad := range []string{"w", "b"} { // the first and the second gradient of the last micro-batch
			t.Run(name+" "+bad, func(t *testing.T) {
				o := o
				o.Dir = t.TempDir()
				m := newToy(t, snug.F32, snug.F32)
				tr := newTrainer(t, m, o)
				var want map[string][]float32
				for tr.Step() < 3 {
					_, err := tr.Train(ctx, batchesFor(o, tr.Step()))
					require.NoError(t, err)
					if want = m.bits(); tr.Step() == 2 {
						require.NoError(t, tr.Save(ctx))
					}
				}
				b := batchesFor(o, 3)
				m.poison = map[int]string{b[len(b)-1][0]: bad}
				_, err := tr.Train(ctx, b)
				require.ErrorIs(t, err, snug.ErrNonFinite)
				if o.Gradients != plan.Folded && (bad == "w" || o.Clip > 0) { // nothing has changed
					require.NoError(t, tr.Save(ctx))
					return
				}
				err = tr.Save(ctx)
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, "step 4 stopped half-way")
				m.poison = nil
				_, err = tr.Train(ctx, b)
				if o.Gradients == plan.Folded {
					require.ErrorContains(t, err, "step 4 stopped half-way")
				} else {
					require.NoError(t, err)
					require.NoError(t, tr.Save(ctx))
					return
				}
				require.NoError(t, tr.Close())
				m = newToy(t, snug.F32, snug.F32)
				tr = newTrainer(t, m, o)
				require.Equal(t, 2, tr.Step())
				_, err = tr.Train(ctx, batchesFor(o, 2))
				require.NoError(t, err)
				require.Equal(t, want, m.bits())
			})
		}
	}
}

// weighted is a toy whose micro-batches have the weights of their first samples.
type weighted struct {
	*toy
	weights map[int]float64
}

func (m weighted) Weight(b []int) float64 { return m.weights[b[0]] }

// Micro-batches that weigh next to nothing do not keep a folded step from its end.
func TestFoldOfSmallWeights(t *testing.T) {
	for _, weights := range [][]float64{{1, 1e-10}, {1e-10, 1}, {1, 1e-30}, {1e-30, 1e-20, 3}, {1e-9, 1, 1e-9, 1e-9}, {1e-8, 1, 1e-8}} {
		m := weighted{newToy(t, snug.F32, snug.F32), map[int]float64{}}
		tr, err := New[[]int](m, Options{Gradients: plan.Folded, Optimizer: quant8.SGD{}})
		require.NoError(t, err)
		whole := weighted{newToy(t, snug.F32, snug.F32), m.weights}
		after, err := New[[]int](whole, Options{Optimizer: quant8.SGD{}})
		require.NoError(t, err)
		var b [][]int
		for i, w := range weights {
			m.weights[i] = w
			b = append(b, []int{i})
		}
		for range 3 {
			_, err = tr.Train(context.Background(), b)
			require.NoError(t, err, "%v", weights)
			_, err = after.Train(context.Background(), b)
			require.NoError(t, err, "%v", weights)
		}
		for name, want := range whole.bits() {
			require.InDeltaSlice(t, want, m.bits()[name], 1e-6, "%v %s", weights, name)
		}
		m.weights[0], m.weights[1] = math.MaxFloat64, math.MaxFloat64
		_, err = tr.Train(context.Background(), b)
		require.ErrorContains(t, err, "Total is +Inf")
		require.NoError(t, errors.Join(tr.Close(), after.Close()))
	}
}

// A step whose context ends between the pass and the update is not made, and may be run again, also with a loss scale.
//
//check:in race
func TestStepsThatAreCancelled(t *testing.T) {
	for name, o := range map[string]Options{"unscaled": {}, "scaled": {Scaler: &amp.ScalerOptions{Interval: 2}}, "disabled": {Scaler: &amp.ScalerOptions{Mode: amp.Disabled}}} {
		t.Run(name, func(t *testing.T) {
			whole, m := newToy(t, snug.F32, snug.F32), newToy(t, snug.F32, snug.F32)
			a := newTrainer(t, whole, o)
			o.Dir = t.TempDir()
			b := newTrainer(t, m, o)
			trainTo(t, a, 4)
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			for b.Step() < 4 {
				_, err := b.Train(ended, steps(b.Step()))
				require.ErrorIs(t, err, context.Canceled)
				if b.Step() > 0 {
					require.NoError(t, b.Save(t.Context()))
				}
				trainTo(t, b, b.Step()+1)
			}
			require.Equal(t, whole.bits(), m.bits())
			require.Equal(t, a.Scale(), b.Scale())
		})
	}
}
