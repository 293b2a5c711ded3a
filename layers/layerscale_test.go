package layers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestPatchesOnDevices: a small vision transformer with tokens, registers, interpolated positions and LayerScales has the gradients of the CPU on
// every device.
//
//check:in emulated
func TestPatchesOnDevices(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		const in, width, images = 6, 8, 2
		model := func(dev *snug.Device) *Model {
			e := NewPatches("e", in, width, 1+4*4, true)
			e.Registers = newParam("e.registers", 1, 1, width)
			e.Resize = &conv.ResizeShape{Size: [3]int{4, 4}, Out: [3]int{3, 3}, Interpolation: conv.Cubic, Antialias: true}
			a := NewAttention("a", width, 2, 2)
			a.Bidirectional, a.Norm, a.Out[0], a.Post = true, *NewLayerNorm("a.norm", width), *NewLinear("a.out", width, width, true), *NewLayerScale("a.scale", width, 0.5)
			b := NewMLP("b", width, 12, SiLU, true)
			b.Down[0], b.Post = *NewLinear("b.down", 12, width, true), *NewLayerScale("b.scale", width, 2)
			m, err := NewModel(in, Pooled{Loss: MSE{}, Means: []Mean{{To: 1}, {From: 2}}}, Options{Seed: 5, Device: dev}, e, a, b)
			require.NoError(t, err)
			return m
		}
		m, host := model(p.Dev), model(nil)
		s := Sample{X: kerneltest.Normal(1, images*11*in), Sequences: images, Y: kerneltest.Normal(2, images*2*width)}
		want, g := gradientsOf(t, host, s), onDevice(t, m)
		_, err := m.Backprop(context.Background(), s, 1, g)
		require.NoError(t, err)
		g.requireNear(t, want)
		require.NotZero(t, want["a.scale.weight"])
		require.NoError(t, m.Close())
	})
}
