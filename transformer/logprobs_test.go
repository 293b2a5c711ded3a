package transformer

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// With the derivatives of the weighted cross-entropy, log-probabilities give its loss and its gradients, on every device.
func TestLogProbs(t *testing.T) {
	ctx := context.Background()
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, c := range []*Config{tiny(), tinyGemma()} {
			for _, classes := range []int{0, 4} {
				m := newTiny(t, c, Options{Seed: 3, Device: p.Dev, LossClasses: classes})
				b := someBatch(4, c.Vocab, 2, 8)
				b.Labels[3], b.Labels[9] = -1, -100
				plain := b
				for i := range b.Tokens {
					b.Weights = append(b.Weights, float32(i%5)*0.3)
				}
				loss, want := gradientsAndLoss(t, m, b)
				logp := make([]float32, len(b.Tokens))
				require.NoError(t, m.LogProbs(ctx, logp, plain))
				sum := 0.0
				for i, x := range logp {
					sum -= float64(b.Weights[i]) * float64(x)
				}
				require.InEpsilon(t, loss.Sum, sum, 1e-6)
				require.Zero(t, logp[3]+logp[9])
				have := gradientsOf(t, m, func(w Window) error {
					return m.BackpropLogProbs(ctx, plain, 4, func(p, dlogp []float32) error {
						require.Equal(t, logp, p)
						for i := range dlogp {
							require.Zero(t, dlogp[i])
							dlogp[i] = -b.Weights[i] / float32(b.Weight()) / 4
						}
						dlogp[3] = float32(math.NaN()) // which is not read
						return nil
					}, w)
				})
				require.Len(t, have, len(want))
				for name, g := range have {
					require.InDeltaSlice(t, want[name], g, 1e-5, name)
				}
			}
		}
	})
}

func TestLogProbsErrors(t *testing.T) {
	m, ctx := newTiny(t, tiny(), Options{}), context.Background()
	b, logp := someBatch(1, 11, 2, 4), make([]float32, 8)
	refused := errors.New("refused")
	derive := func(dlogp float32, err error) Derive {
		return func(_, d []float32) error { d[2] = dlogp; return err }
	}
	weighted := b
	weighted.Weights = make([]float32, 8)
	for _, c := range []struct {
		err  error
		want error
		says string
	}{
		{m.LogProbs(ctx, logp[:7], b), snug.ErrShape, "logp has 7 elements, want one for each of 8 tokens"},
		{m.LogProbs(ctx, logp, weighted), snug.ErrConfig, "Weights"},
		{m.LogProbs(ctx, logp, Batch{Tokens: b.Tokens}), snug.ErrShape, "0 labels"},
		{m.BackpropLogProbs(ctx, b, 1, nil, newWindow(t, m)), snug.ErrConfig, "BackpropLogProbs: derive is nil"},
		{m.BackpropLogProbs(ctx, b, 1, derive(0, nil), nil), snug.ErrConfig, "the window is nil"},
		{m.BackpropLogProbs(ctx, weighted, 1, derive(0, nil), newWindow(t, m)), snug.ErrConfig, "Weights"},
		{m.BackpropLogProbs(ctx, b, 1, derive(0, refused), newBegun(t, m)), refused, "BackpropLogProbs: derive: refused"},
		{m.BackpropLogProbs(ctx, b, 1, derive(float32(math.Inf(1)), nil), newBegun(t, m)), snug.ErrNonFinite, "derive: dlogp[2] is +Inf"},
	} {
		require.ErrorIs(t, c.err, c.want)
		require.ErrorContains(t, c.err, c.says)
	}
	require.NoError(t, m.LogProbs(ctx, logp, b), "the model is as before")
	for _, x := range []float32{-1, float32(math.NaN()), 1e31} {
		hot := b
		hot.Temperature = x
		require.ErrorIs(t, m.LogProbs(ctx, logp, hot), snug.ErrConfig)
		require.ErrorIs(t, m.BackpropLogProbs(ctx, b, float32(math.Inf(1)), derive(0, nil), newBegun(t, m)), snug.ErrConfig)
	}
	hot := b
	hot.Temperature = 1
	_, err := m.Evaluate(ctx, hot)
	require.ErrorContains(t, err, "only LogProbs and BackpropLogProbs have")
	_, err = m.Backprop(ctx, hot, 1, newBegun(t, m))
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorIs(t, m.Logits(ctx, make([]float32, 22), hot, nil), snug.ErrConfig)
	nobody := b
	nobody.Labels = []int32{-1, -1, -1, -1, -1, -1, -1, -1}
	require.NoError(t, m.BackpropLogProbs(ctx, nobody, 1, derive(0, refused), refusing{}), "calls nobody")
	for _, o := range []Options{{Smoothing: -0.1}, {Smoothing: 1.1}, {ZLoss: float32(math.NaN())}, {ZLoss: -1}, {ZLoss: float32(math.Inf(1))}} {
		_, err := New(tiny(), o)
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "the option Smoothing is")
	}
}

// newBegun returns a window that has begun.
func newBegun(t *testing.T, m *Model) Window {
	w := newWindow(t, m)
	require.NoError(t, w.Begin(1))
	return w
}

// The terms of the loss of Backprop are not those of Evaluate.
func TestSmoothing(t *testing.T) {
	c, ctx := tiny(), context.Background()
	plain, m := newTiny(t, c, Options{Seed: 3}), newTiny(t, c, Options{Seed: 3, Smoothing: 0.1, ZLoss: 0.01})
	b := someBatch(4, c.Vocab, 2, 8)
	want, err := plain.Evaluate(ctx, b)
	require.NoError(t, err)
	have, err := m.Evaluate(ctx, b)
	require.NoError(t, err)
	require.Equal(t, want, have)

	logits, sum := allLogits(t, m, b), 0.0
	for i, target := range b.Labels {
		z, total, mean := logits[i*c.Vocab:][:c.Vocab], 0.0, 0.0
		for _, x := range z {
			total += math.Exp(float64(x))
			mean += float64(x) / float64(c.Vocab)
		}
		lse := math.Log(total)
		sum += lse - 0.9*float64(z[target]) - 0.1*mean + 0.01*lse*lse
	}
	w := newWindow(t, m)
	require.NoError(t, w.Begin(1))
	loss, err := m.Backprop(ctx, b, 1, w)
	require.NoError(t, err)
	require.InEpsilon(t, sum, loss.Sum, 1e-6)
}

// The temperature divides the logits.
func TestLogProbsTemperature(t *testing.T) {
	c, ctx := tiny(), context.Background()
	m := newTiny(t, c, Options{Seed: 3})
	b := someBatch(4, c.Vocab, 2, 8)
	logits := allLogits(t, m, b)
	b.Temperature = 0.5
	logp := make([]float32, len(b.Tokens))
	require.NoError(t, m.LogProbs(ctx, logp, b))
	for i, target := range b.Labels {
		sum := 0.0
		for _, x := range logits[i*c.Vocab:][:c.Vocab] {
			sum += math.Exp(2 * float64(x))
		}
		require.InDelta(t, 2*float64(logits[i*c.Vocab+int(target)])-math.Log(sum), logp[i], 1e-5)
	}
}
