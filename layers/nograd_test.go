package layers_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/remat"
)

// gradients takes gradients by name.
type gradients map[string][]float32

func (g gradients) Into(name string) (snug.View, snug.Into, error) {
	return snug.ViewOf(g[name]), snug.Into{Alpha: 1, Beta: 1}, nil
}

// TestNoGrad: a frozen backbone gives the gradients behind it that it has without NoGrad, to the bit, with every plan, and keeps less.
func TestNoGrad(t *testing.T) {
	const rows, width = 12, 8
	type kept struct {
		loss      float64
		gradients gradients
		saved     int64
	}
	run := func(wrap bool, each func(costs remat.Costs) remat.Plan) kept {
		list := []layers.Layer{layers.NewLinear("in", width, width, true), layers.NewAttention("att", width, 2, 2), layers.NewMLP("mlp", width, 16, layers.SiLU, true),
			layers.NewAttention("last", width, 2, 2), layers.NewLinear("out", width, 3, true)}
		for i, l := range list[:3] {
			l.Params(func(w *layers.Param) bool {
				w.Trains = false
				return true
			})
			if wrap {
				list[i] = layers.NoGrad{Layer: l}
			}
		}
		m, err := layers.NewModel(width, layers.MSE{}, layers.Options{Seed: 3}, list...)
		require.NoError(t, err)
		costs, err := m.Costs(2, rows/2)
		require.NoError(t, err)
		require.NoError(t, m.SetPlan(each(costs)))
		g := gradients{}
		for name, v := range m.Trainable() {
			g[name] = make([]float32, v.Len())
		}
		loss, err := m.Backprop(context.Background(), layers.Sample{X: patchNumbers(rows * width), Y: patchNumbers(rows * 3), Sequences: 2}, 1, g)
		require.NoError(t, err)
		require.Empty(t, m.Report.Mismatches)
		k := kept{loss: loss.Mean(), gradients: g}
		for _, c := range costs.Stages {
			k.saved += c.Saved
		}
		return k
	}
	none := func(remat.Costs) remat.Plan { return remat.Plan{} }
	chen := func(c remat.Costs) remat.Plan {
		p, err := remat.Chen(c)
		require.NoError(t, err)
		return p
	}
	want := run(false, none)
	for name, plan := range map[string]func(remat.Costs) remat.Plan{"all kept": none, "recomputed": chen} {
		t.Run(name, func(t *testing.T) {
			got := run(true, plan)
			require.Equal(t, want.loss, got.loss)
			require.Equal(t, want.gradients, got.gradients)
			require.Less(t, got.saved, want.saved)
		})
	}
}

// TestNoGradWithin: the gradient of what goes past a NoGrad is that of the rest.
func TestNoGradWithin(t *testing.T) {
	frozen := layers.NewLinear("frozen", 4, 4, false)
	frozen.Weight.Trains = false
	_, err := layers.NewModel(4, layers.MSE{}, layers.Options{}, layers.NoGrad{Layer: layers.NewLinear("l", 4, 4, false)})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "l.weight")
	m, err := layers.NewModel(4, layers.MSE{}, layers.Options{Seed: 1}, layers.NewLinear("l", 4, 4, false), layers.Residual{Layer: layers.NoGrad{Layer: frozen}})
	require.NoError(t, err)
	s := layers.Sample{X: patchNumbers(8), Y: patchNumbers(8)}
	g := gradients{"l.weight": make([]float32, 16)}
	_, err = m.Backprop(context.Background(), s, 1, g)
	require.NoError(t, err)
	y := make([]float32, 8)
	require.NoError(t, m.Predict(context.Background(), y, s))
	for o := range 4 {
		for i := range 4 {
			sum := 0.
			for r := range 2 {
				sum += 2. / 8 * float64(y[r*4+o]-s.Y[r*4+o]) * float64(s.X[r*4+i])
			}
			require.InDelta(t, sum, g["l.weight"][o*4+i], 1e-6)
		}
	}
}
