package main

import (
	"math"
	"runtime"
	"testing"

	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) { require.NoError(t, run(qlora.FP4, 2, 2)) }

// TestGradients compares every kind of parameter with differences of the loss, in all
// forms.
func TestGradients(t *testing.T) {
	text, _, err := readText("*/*.go")
	require.NoError(t, err)
	base, err := newModel(whole, qlora.NF4, nil)
	require.NoError(t, err)
	require.NoError(t, train(base, text, 3, 1e-3))
	for f := range forms {
		if testing.Short() && f != qlorad {
			continue
		}
		m, err := newModel(f, qlora.NF4, base)
		require.NoError(t, err)
		require.NoError(t, train(m, text, 3, 1e-3), "so that adapters are not 0")
		b := draw(base.rng, text)
		require.NoError(t, m.step(b, 0), "which changes nothing")
		for _, p := range m.params {
			squares := 0.0
			for _, g := range p.grad {
				squares += float64(g) * float64(g)
			}
			norm, start := math.Sqrt(squares), append([]float32(nil), p.w...)
			at := func(step float64) float64 {
				for i, g := range p.grad {
					p.w[i] = start[i] + float32(step*float64(g)/norm)
				}
				loss, err := m.evaluate(b)
				require.NoError(t, err)
				return loss
			}
			const step = 0.02
			require.InEpsilon(t, norm, (at(step)-at(-step))/(2*step), 0.03, "%v: %s", f, p.name)
			copy(p.w, start)
		}
	}
}

// TestForms: what a form takes is what it says, and training helps.
func TestForms(t *testing.T) {
	text, held, err := readText("*/*.go")
	require.NoError(t, err)
	base, err := newModel(whole, qlora.NF4, nil)
	require.NoError(t, err)
	for f := range forms {
		if testing.Short() && f != qlorad {
			continue
		}
		r, err := tune(f, qlora.NF4, base, text, held, 12)
		require.NoError(t, err)
		require.Less(t, r.after, r.before-0.2)
		require.InEpsilon(t, r.kept()+r.bytes[activations], r.heap, 0.05, "%v", f)
		runtime.KeepAlive(base)
	}
}
