package transformer

import (
	"context"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// squares is a loss of all log-probabilities: the sum of their squares over two.
func squares(logp, dlogp []float32) error {
	copy(dlogp, logp)
	return nil
}

// A derive that panics, ends its goroutine or fails leaves the model as it was.
func TestDeriveFails(t *testing.T) {
	m, ctx, nan := newTiny(t, tiny(), Options{Seed: 3}), context.Background(), float32(math.NaN())
	b := someBatch(7, 11, 2, 9)
	want := gradientsOf(t, m, func(w Window) error { return m.BackpropLogProbs(ctx, b, 1, squares, w) })
	for _, derive := range []Derive{
		func(_, _ []float32) error { panic(kerneltest.ErrFault) },
		func(_, _ []float32) error { runtime.Goexit(); return nil },
		func(_, _ []float32) error { return kerneltest.ErrFault },
	} {
		err := kerneltest.Recovered(func() error { return m.BackpropLogProbs(ctx, b, 1, derive, newBegun(t, m)) })
		require.ErrorIs(t, err, kerneltest.ErrFault)
		have := gradientsOf(t, m, func(w Window) error { return m.BackpropLogProbs(ctx, b, 1, squares, w) })
		require.Equal(t, want, have)
	}
	have := gradientsOf(t, m, func(w Window) error {
		return m.BackpropLogProbs(ctx, b, 1, func(logp, dlogp []float32) error {
			err := squares(logp, dlogp)
			for i := range logp {
				logp[i] = nan // which is the caller's to overwrite
			}
			_ = append(append(logp, nan, nan), dlogp...)
			return err
		}, w)
	})
	require.Equal(t, want, have)
}

// A model refuses another call from derive.
func TestDeriveUsesTheModel(t *testing.T) {
	ctx := context.Background()
	b := someBatch(7, 11, 2, 9)
	for name, call := range map[string]func(m *Model) error{
		"LogProbs": func(m *Model) error { return m.LogProbs(ctx, make([]float32, len(b.Tokens)), b) },
		"Evaluate": func(m *Model) error { _, err := m.Evaluate(ctx, b); return err },
		"Logits":   func(m *Model) error { return m.Logits(ctx, make([]float32, 2*11), b, nil) },
		"Backprop": func(m *Model) error { _, err := m.Backprop(ctx, b, 1, newBegun(t, m)); return err },
	} {
		t.Run(name, func(t *testing.T) {
			m := newTiny(t, tiny(), Options{Seed: 3})
			require.NotPanics(t, func() {
				err := m.BackpropLogProbs(ctx, b, 1, func(logp, dlogp []float32) error {
					if err := call(m); err != nil {
						return err
					}
					return squares(logp, dlogp)
				}, newBegun(t, m))
				require.ErrorIs(t, err, snug.ErrConfig)
			})
		})
	}
}

// Gradients of log-probabilities are those of differences of the loss, in packed sequences too.
func TestLogProbsGradientsByDifferences(t *testing.T) {
	ctx := context.Background()
	untied := tiny()
	untied.Tied = false
	packed := someBatch(8, 11, 1, 11)
	packed.Sequences, packed.Starts = 0, []int{0, 1, 6, 11}
	for name, c := range map[string]*Config{"tied": tiny(), "untied": untied, "gemma": tinyGemma(), "gpt2": tinyGPT2(GELUTanh)} {
		t.Run(name, func(t *testing.T) {
			for _, b := range []Batch{someBatch(7, c.Vocab, 2, 9), packed} {
				m := newTiny(t, c, Options{Seed: 3, LossRows: 4, LossClasses: 4})
				grads := gradientsOf(t, m, func(w Window) error { return m.BackpropLogProbs(ctx, b, 1, squares, w) })
				logp := make([]float32, len(b.Tokens))
				loss := func() (sum float64) {
					require.NoError(t, m.LogProbs(ctx, logp, b))
					for _, p := range logp {
						sum += float64(p) * float64(p) / 2
					}
					return sum
				}
				for _, p := range m.Params() {
					v := p.Value.Float32s()
					for i := 0; i < len(v); i += 1 + len(v)/4 {
						at := func(x float32) float64 {
							old := v[i]
							defer func() { v[i] = old }()
							v[i] += x
							return loss()
						}
						// The error is of the order h⁴, and rounding of the four losses to about 2^-20 of their size, divided by h.
						const h = 1.0 / 256
						want := (8*(at(h)-at(-h)) - (at(2*h) - at(-2*h))) / (12 * h)
						require.InDelta(t, want, grads[p.Name][i], 1e-2*(1+math.Abs(want)), "%s: %s[%d]", name, p.Name, i)
					}
				}
			}
		})
	}
}
