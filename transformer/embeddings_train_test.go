package transformer_test

import (
	"context"
	"iter"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

// whole is a projector whose language model trains too.
type whole struct{ *projector }

func (p whole) Trainable() iter.Seq2[string, snug.View] {
	return func(yield func(string, snug.View) bool) {
		for name, v := range p.lm.Trainable() {
			if !yield(name, v) {
				return
			}
		}
		p.projector.Trainable()(yield)
	}
}

func (p whole) Backprop(ctx context.Context, c captioned, scale float32, w train.Window) (fused.Loss, error) {
	loss, err := p.projector.Backprop(ctx, c, scale, w)
	if done, is := w.(train.Completer); is && err == nil {
		err = done.Done("projector.weight")
	}
	return loss, err
}

// newWhole returns a projector with values, before a model with a tied head, which trains.
func newWhole(t *testing.T) whole {
	t.Helper()
	lm, err := transformer.New(&transformer.Config{Family: transformer.Llama, Vocab: 8, Dim: width, Hidden: 24, Layers: 2, Heads: 2, KVHeads: 2,
		HeadDim: 8, Context: 16, NormEps: 1e-5, Activation: transformer.SiLU, Gated: true, Windows: []int{0, 0}, ScoreScale: 0.35, EmbeddingScale: 1,
		Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 1e4, Dim: 8}, Tied: true, InitStd: 0.3}, transformer.Options{Seed: 1})
	require.NoError(t, err)
	return whole{&projector{lm, kerneltest.Uniform(2, width*features), make([]float32, width), make([]float32, width)}}
}

func captions() []captioned {
	return []captioned{
		{transformer.Batch{Tokens: []int32{7, 2, 1}, Labels: []int32{2, -100, 5}}, []float32{1, 0, 1, 0}},
		{transformer.Batch{Tokens: []int32{7, 5, 1}, Labels: []int32{5, 4, -100}}, []float32{0, 1, 0, 1}},
	}
}

// trainedBy returns the parameters after some steps.
func trainedBy(t *testing.T, p whole, o train.Options, batches ...captioned) map[string][]float32 {
	t.Helper()
	o.StateBits, o.Schedule = 32, train.Constant(0.01)
	tr, err := train.New(p, o)
	require.NoError(t, err)
	for range 4 {
		_, err = tr.Train(t.Context(), batches)
		require.NoError(t, err)
	}
	values := map[string][]float32{}
	for name, v := range p.Trainable() {
		values[name] = v.Float32s()
	}
	return values
}

// TestProjectorTrains: vectors' gradients reach a projector, and the model's its parameters, the same in backward and in a window.
func TestProjectorTrains(t *testing.T) {
	one := captions()[0]
	want := trainedBy(t, newWhole(t), train.Options{}, one)
	require.Equal(t, want, trainedBy(t, newWhole(t), train.Options{Gradients: plan.InBackward}, one))
	twice := trainedBy(t, newWhole(t), train.Options{}, one, one) // whose mean is that of one
	for name, w := range want {
		for i, x := range w {
			require.InDelta(t, x, twice[name][i], 1e-5, "%s[%d]", name, i)
		}
	}
}

// TestProjectorGradients compares gradients of the projector and of the model with differences of the loss.
//
//check:not bits32
func TestProjectorGradients(t *testing.T) {
	for _, c := range captions() {
		require.NoError(t, train.CheckGradients(t.Context(), newWhole(t), c))
	}
}
