package qlora

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestDoRARefusesBeforeItWrites: gradients of another type and factors beyond float32 are
// errors that leave all accumulators as they are.
func TestDoRARefusesBeforeItWrites(t *testing.T) {
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	w, err := NewWeight(kerneltest.Normal(1, 64*32), []int{64, 32}, Options{})
	require.NoError(t, err)
	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	a := &LoRA{In: 32, Out: 64, Rank: 2, Scale: 2, A: v(64), B: v(128), Magnitude: v(64)}
	require.NoError(t, l.Norms(a.Magnitude, nil))
	d, err := NewDoRA(l, a)
	require.NoError(t, err)
	x := func(n int) snug.View { return snug.ViewOf(kerneltest.Normal(uint64(n), n)) }
	for name, c := range map[string]struct {
		change func(g *Grads)
		want   error
	}{
		"magnitudes of bf16":      {func(g *Grads) { g.Magnitude = snug.ViewOf(make([]snug.BFloat16, 64)) }, snug.ErrDType},
		"magnitudes of u8":        {func(g *Grads) { g.Magnitude = snug.SliceView(make([]uint8, 64)) }, snug.ErrDType},
		"A of u8":                 {func(g *Grads) { g.A = snug.SliceView(make([]uint8, 64)) }, snug.ErrDType},
		"B of f16":                {func(g *Grads) { g.B = snug.ViewOf(make([]snug.Float16, 128)) }, snug.ErrDType},
		"Alpha·Scale is infinite": {func(g *Grads) { g.Into.Alpha = 3e38 }, snug.ErrConfig},
	} {
		t.Run(name, func(t *testing.T) {
			g := Grads{A: v(64), B: v(128), Magnitude: v(64)}
			c.change(&g)
			require.ErrorIs(t, d.Backward(v(32), v(2), x(64), x(64), x(2), x(32), g, Dropout{}), c.want, name)
			for _, acc := range []snug.View{g.A, g.B, g.Magnitude} {
				for _, f := range acc.Float32s() {
					require.Zero(t, f, name)
				}
			}
		})
	}
}
