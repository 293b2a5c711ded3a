package train_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/train"
)

// checkedModel returns a model with kinks: convolutions, ReLU, the largest of windows, and an attention of frames.
func checkedModel(t *testing.T, dt snug.DType, more ...layers.Layer) (*layers.Model, layers.Sample) {
	relu := layers.Elementwise(func(x float32) float32 { return max(x, 0) }, func(x float32) float32 {
		if x > 0 {
			return 1
		}
		return 0
	})
	list := []layers.Layer{layers.NewConv("conv", conv.Shape{In: 1, Out: 4, Dims: 2, Size: [3]int{6, 6}, Kernel: [3]int{3, 3}}.Same(), true)}
	if dt == snug.F32 {
		list = append(list, relu)
	}
	list = append(list, layers.MaxPool{Shape: conv.PoolShape{Channels: 4, Dims: 2, Size: [3]int{6, 6}, Kernel: [3]int{2, 2}}},
		layers.AvgPool{Shape: conv.PoolShape{Channels: 4, Dims: 2, Size: [3]int{3, 3}, Adaptive: [3]int{1, 1}}}, layers.NewLinear("in", 4, 8, true), layers.NewAttention("attention", 8, 2, 2))
	m, err := layers.NewModel(36, layers.MSE{}, layers.Options{Seed: 1, DType: dt}, slices.Concat(list, more, []layers.Layer{layers.NewLinear("out", 8, 2, true)})...)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	s := layers.Sample{Sequences: 2, X: make([]float32, 10*36), Y: make([]float32, 10*2)}
	for _, x := range [][]float32{s.X, s.Y} {
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
	}
	return m, s
}

// TestCheckGradients: right gradients pass, those in 16 bits are too coarse to tell, and parameters are as before.
func TestCheckGradients(t *testing.T) {
	for _, dt := range []snug.DType{snug.F32, snug.F16} {
		m, s := checkedModel(t, dt)
		before, err := m.Evaluate(t.Context(), s)
		require.NoError(t, err)
		if err := train.CheckGradients(t.Context(), m, s); dt == snug.F32 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "the loss is too coarse")
		}
		after, err := m.Evaluate(t.Context(), s)
		require.NoError(t, err)
		require.Equal(t, before, after)
	}
}

// faulty is a Model whose Backprop does something else.
type faulty struct {
	*layers.Model
	backprop func(m *layers.Model, s layers.Sample, scale float32, w train.Window) (fused.Loss, error)
}

func (f faulty) Backprop(_ context.Context, s layers.Sample, scale float32, w train.Window) (fused.Loss, error) {
	return f.backprop(f.Model, s, scale, w)
}

// passing is a window that lets a test change a gradient on its way.
type passing struct {
	train.Window
	into func(name string, acc snug.View, into snug.Into) (snug.View, snug.Into)
}

func (p passing) Into(name string) (snug.View, snug.Into, error) {
	acc, into, err := p.Window.Into(name)
	acc, into = p.into(name, acc, into)
	return acc, into, err
}

// TestCheckGradientsFinds: every fault that own-layer.md warns of is found, also 5 % in one parameter.
func TestCheckGradientsFinds(t *testing.T) {
	m, s := checkedModel(t, snug.F32)
	through := func(change func(name string, acc snug.View, into snug.Into) (snug.View, snug.Into)) func(*layers.Model, layers.Sample, float32, train.Window) (fused.Loss, error) {
		return func(m *layers.Model, s layers.Sample, scale float32, w train.Window) (fused.Loss, error) {
			return m.Backprop(t.Context(), s, scale, passing{w, change})
		}
	}
	lost := make([]float32, 1<<10)
	for name, c := range map[string]struct {
		backprop func(m *layers.Model, s layers.Sample, scale float32, w train.Window) (fused.Loss, error)
		want     string
	}{
		"5 % too large": {through(func(name string, acc snug.View, into snug.Into) (snug.View, snug.Into) {
			if name == "conv.weight" {
				into.Alpha *= 1.05
			}
			return acc, into
		}), "conv.weight: the slope of the loss along a direction is"},
		"missing": {through(func(name string, acc snug.View, into snug.Into) (snug.View, snug.Into) {
			if name == "in.bias" {
				acc = snug.ViewOf(lost[:acc.Len()])
			}
			return acc, into
		}), "in.bias: "},
		"written, not added": {through(func(name string, acc snug.View, into snug.Into) (snug.View, snug.Into) {
			into.Beta = 0
			return acc, into
		}), "want its double added"},
		"without the scale": {func(m *layers.Model, s layers.Sample, _ float32, w train.Window) (fused.Loss, error) {
			return m.Backprop(t.Context(), s, 2, w)
		}, "want its double added"},
		"another loss": {func(m *layers.Model, s layers.Sample, scale float32, w train.Window) (fused.Loss, error) {
			l, err := m.Backprop(t.Context(), s, scale, w)
			l.Sum *= 1.1
			return l, err
		}, "the loss of Backprop is"},
	} {
		t.Run(name, func(t *testing.T) {
			err := train.CheckGradients[layers.Sample](t.Context(), faulty{m, c.backprop}, s)
			var wrong *train.GradientError
			require.ErrorAs(t, err, &wrong)
			require.ErrorContains(t, err, c.want)
			t.Log(err)
		})
	}
	fails := errors.New("no")
	err := train.CheckGradients[layers.Sample](t.Context(), faulty{m, func(*layers.Model, layers.Sample, float32, train.Window) (fused.Loss, error) {
		return fused.Loss{}, fails
	}}, s)
	require.ErrorIs(t, err, fails)
	require.ErrorIs(t, train.CheckGradients[layers.Sample](t.Context(), nil, s), snug.ErrConfig)
	require.ErrorContains(t, train.CheckGradients(t.Context(), m, layers.Sample{}), "train: CheckGradients: ")
}
