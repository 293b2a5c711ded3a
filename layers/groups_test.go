package layers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/remat"
)

// TestGroups: two layers on halves of the rows are two models of these halves, and hold the bytes that are planned.
func TestGroups(t *testing.T) {
	const in, out, rows = 12, 6, 10
	branch := func(name string, norm int) Layer {
		return Sequential{NewLayerNorm(name+".norm", norm), NewLinear(name+".1", in, 8, true), GELU, NewLinear(name+".2", 8, out, true)}
	}
	x, y := kerneltest.Uniform(1, rows*in), kerneltest.Uniform(2, rows*out)
	run := func(m *Model, err error, s Sample, scale float32) gradients {
		require.NoError(t, err)
		require.NoError(t, m.pass.set(m.params[0].Value, kerneltest.Uniform(3, m.params[0].Len())))
		w := gradients{}
		for name, v := range m.Trainable() {
			w[name] = make([]float32, v.Len())
		}
		_, err = m.Backprop(context.Background(), s, scale, w)
		require.NoError(t, err)
		require.Empty(t, m.Report.Mismatches)
		return w
	}
	both := Groups{branch("a", in/3), branch("b", in)}
	m, err := NewModel(in, MSE{}, Options{Seed: 1}, both)
	require.NoError(t, err)
	have := run(m, err, Sample{X: x, Y: y}, 1)
	for i, layer := range both {
		one, err := NewModel(in, MSE{}, Options{Seed: 2}, branch([]string{"a", "b"}[i], []int{in / 3, in}[i]))
		require.NoError(t, err)
		values := map[string]snug.View{}
		for _, p := range m.params {
			values[p.Name] = p.Value
		}
		half := Sample{X: x[i*rows/2*in:][:rows/2*in], Y: y[i*rows/2*out:][:rows/2*out]}
		w := gradients{}
		for _, p := range one.params {
			require.NoError(t, snug.Copy(p.Value, values[p.Name]))
			w[p.Name] = make([]float32, p.Len())
		}
		_, err = one.Backprop(context.Background(), half, 0.5, w)
		require.NoError(t, err)
		for name, g := range w {
			require.InDeltaSlice(t, g, have[name], 1e-6, name)
		}
		require.NotNil(t, layer)
	}
	costs, err := m.Costs(1, rows)
	require.NoError(t, err)
	plan, err := remat.Chen(costs)
	require.NoError(t, err)
	require.NoError(t, m.SetPlan(plan))
	require.Equal(t, have, run(m, nil, Sample{X: x, Y: y}, 1))

	_, err = m.Evaluate(context.Background(), Sample{X: x[:9*in], Y: y[:9*out]})
	require.ErrorIs(t, err, snug.ErrShape)
	for _, bad := range []Groups{nil, {nil}, {NewLinear("a", in, 3, false), NewLinear("b", in, 4, false)}, {NewLinear("a", in, 3, false), NewLinear("b", 4, 3, false)}, {NewAttention("a", in, 2, 2)}} {
		_, err := NewModel(in, MSE{}, Options{}, bad)
		require.Error(t, err)
	}
}
