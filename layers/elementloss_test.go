package layers_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/train"
)

// TestLossesOfPixels: losses of the pixels of a segmentation are means over all, have their gradients, and want as many targets.
func TestLossesOfPixels(t *testing.T) {
	ctx := context.Background()
	const rows, pixels = 3, 20
	shape := conv.Shape{In: 1, Out: 2, Dims: 2, Size: [3]int{4, 5}, Kernel: [3]int{3, 3}, Layout: conv.ChannelsLast}.Same()
	x, y, labels := make([]float32, rows*pixels), make([]float32, rows*pixels*2), make([]int32, rows*pixels)
	for i := range x {
		x[i], labels[i] = float32(math.Sin(float64(i))), int32(i*i%4)-1
	}
	for i := range y {
		y[i] = float32(i * i % 3 % 2)
	}
	for _, loss := range []layers.Loss{
		layers.ElementLoss{fused.Elementwise{Form: fused.MSE}}, layers.ElementLoss{fused.Elementwise{Form: fused.Huber, Delta: 0.3}},
		layers.ElementLoss{fused.Elementwise{Form: fused.BCE, PosWeight: []float32{1, 3}}}, layers.ElementLoss{fused.Elementwise{Form: fused.Focal}},
		layers.DiceLoss{fused.Dice{Cols: 2 * pixels}}, layers.NewCrossEntropy("head", 3, 2),
	} {
		for _, dt := range []snug.DType{snug.F32, snug.BF16} {
			if _, is := loss.(*layers.CrossEntropy); is { // whose parameters are of one model
				loss = layers.NewCrossEntropy("head", 3, 2)
			}
			m, err := layers.NewModel(pixels, loss, layers.Options{Seed: 4, DType: dt}, layers.NewConv("c", shape, true))
			require.NoError(t, err)
			tolerance := map[snug.DType]float64{snug.F32: 1e-6, snug.BF16: 1e-2}[dt]
			s := layers.Sample{X: x, Y: y}
			if _, is := loss.(*layers.CrossEntropy); is {
				s = layers.Sample{X: x, Labels: labels}
			}
			if dt == snug.F32 {
				require.NoError(t, train.CheckGradients(ctx, m, s))
			}
			_, all, err := train.Gradients(ctx, m, s)
			require.NoError(t, err)
			require.Equal(t, m.Weight(s), all.Weight)
			out := make([]float32, rows*pixels*2)
			require.NoError(t, m.Predict(ctx, out, layers.Sample{X: x}))
			if e, is := loss.(layers.ElementLoss); is {
				want, err := fused.ElementwiseLoss(e.Elementwise, out, y)
				require.NoError(t, err)
				require.InDelta(t, want.Mean(), all.Mean(), tolerance*want.Mean())
				if e.Form == fused.MSE {
					m, err := layers.NewModel(pixels, layers.MSE{}, layers.Options{Seed: 4}, layers.NewConv("c", shape, true))
					require.NoError(t, err)
					same, err := m.Evaluate(ctx, s)
					require.NoError(t, err)
					require.InDelta(t, same.Mean(), all.Mean(), tolerance)
				}
			}
			s.Y, s.Labels = s.Y[:max(0, len(s.Y)-1)], s.Labels[:max(0, len(s.Labels)-1)]
			_, err = m.Evaluate(ctx, s)
			require.ErrorIs(t, err, snug.ErrShape)
		}
	}
	for _, loss := range []layers.Loss{
		layers.ElementLoss{}, layers.ElementLoss{fused.Elementwise{Form: fused.MSE, Weights: []float32{1}}}, layers.DiceLoss{}, layers.DiceLoss{fused.Dice{Cols: 3}},
		layers.NewCrossEntropy("head", 3, 0),
	} {
		_, err := layers.NewModel(pixels, loss, layers.Options{}, layers.NewConv("c", shape, true))
		require.ErrorIs(t, err, snug.ErrConfig)
	}
}
