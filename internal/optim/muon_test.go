package optim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestMuon has numbers that are exact: momentum, what is to be orthogonalized, and the
// last update in tiles of a part of bfloat16.
func TestMuon(t *testing.T) {
	h := Hyper{Rule: Muon, LR: 0.5, Beta1: 0.75, WeightDecay: 0.5, DecayFirst: true, Size: 2, GradScale: 2}
	for nesterov, want := range map[bool][]float32{false: {4, -3}, true: {7, -2.25}} {
		h.Nesterov = nesterov
		c := h.Coef()
		x, m := make([]float32, 2), []float32{0, -4}
		c.Update(x, []float32{8, 0}, [MaxStates][]float32{m})
		require.Equal(t, []float32{4, -3}, m)
		require.Equal(t, want, x)
	}
	c := h.Coef()
	p := make([]snug.BFloat16, 7)
	for i := range p {
		p[i] = snug.ToBFloat16(float32(4 * i))
	}
	c.Apply(Operands{P: snug.ViewOf(p)}, 1, 6, []float32{1, 2, 3, 4, 5}, make([]float32, 2))
	for i, want := range []float32{0, 1, 2, 3, 4, 5, 24} {
		require.Equal(t, want, p[i].Float32())
	}
}
