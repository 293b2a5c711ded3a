package amp

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/stretchr/testify/require"
)

// TestAllocations has what a training step calls.
func TestAllocations(t *testing.T) {
	x, half, brain := kerneltest.Uniform(1, 3*measure.MinPiece), make([]snug.Float16, 3*measure.MinPiece), make([]snug.BFloat16, 3*measure.MinPiece)
	grads := kerneltest.Walk(kerneltest.Slice("x", x), kerneltest.Slice("y", kerneltest.Uniform(2, 100)))
	halves := kerneltest.Walk(kerneltest.Named{Name: "x", View: snug.ViewOf(half)})
	s := newScaler(t, ScalerOptions{})
	m := newMaster(t, MasterOptions{Chunk: 1000})
	require.NoError(t, m.Add("x", len(x), fillWith(x)))
	halved := map[MasterForm]*Master{}
	for _, form := range []MasterForm{SplitMaster, NoMaster, Split24Master} {
		halved[form] = newMaster(t, MasterOptions{Form: form, Chunk: 1000})
		require.NoError(t, halved[form].AddFrom("x", snug.ViewOf(brain), nil))
	}
	random := newMaster(t, MasterOptions{Form: Split24Master, Stochastic: true, Chunk: 1000})
	require.NoError(t, random.AddFrom("x", snug.ViewOf(brain), nil))
	counts := newMaster(t, MasterOptions{Form: Split24Master, Stochastic: true, CountLost: true, Chunk: 10000})
	require.NoError(t, counts.AddFrom("x", snug.ViewOf(brain), nil))
	decay := func(_ int, v snug.View) error {
		w := v.Float32s()
		for i := range w {
			w[i] *= 0.9
		}
		return nil
	}
	pairs := pairsOf(CastPair{snug.ViewOf(half), snug.ViewOf(x)}, CastPair{snug.ViewOf(brain), snug.ViewOf(x)})
	calls := map[string]func() error{
		"cast":        func() error { return Cast(half, x) },
		"cast halves": func() error { return Cast(brain, half) },
		"cast all":    func() error { return CastAll(pairs, CastOptions{Saturate: true}) },
		"measure":     func() error { _, err := Measure(grads); return err },
		"clip":        func() error { _, err := Clip(grads, 2, 1); return err },
		"clip value":  func() error { _, err := ClipValue(halves, 1); return err },
		"clip halves": func() error { _, err := Clip(halves, 2, 1); return err },
		"master":      func() error { return m.Update("x", snug.ViewOf(half), decay) },
		"split":       func() error { return halved[SplitMaster].Update("x", snug.ViewOf(brain), decay) },
		"split24":     func() error { return halved[Split24Master].Update("x", snug.ViewOf(brain), decay) },
		"at random":   func() error { return random.Update("x", snug.ViewOf(brain), decay) },
		"counts":      func() error { return counts.Update("x", snug.ViewOf(brain), decay) },
		"no master":   func() error { return halved[NoMaster].Update("x", snug.ViewOf(brain), decay) },
		"matmul":      func() error { return MatMul(x[:400], half, brain, MatMulOptions{M: 20, N: 20, K: 30}) },
		"scaler": func() error {
			if _, err := s.Unscale("opt", grads); err != nil {
				return err
			}
			if _, err := s.Step("opt", grads, nop); err != nil {
				return err
			}
			return s.Update()
		},
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			var err error
			kerneltest.NoAllocs(t, func() { err = call() })
			require.NoError(t, err)
		})
	}
}
