package layers

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestAxes compares rotations by positions in three axes with their definition, also where a pass has one sequence at a time.
func TestAxes(t *testing.T) {
	const width, heads, rows = 20, 2, 6
	axes := [][]int32{{0, 1, 1, 0, 4, 5}, {0, 1, 2, 0, 2, 3}, {0, 2, 1, 1, 3, 9}}
	for name, rope := range map[string]Rope{
		"in a row": {Kind: RopeDefault, Theta: 50, Dim: 10, Sections: [3]int{1, 2, 2}},
		"axial":    {Kind: RopeAxial, Theta: 50, Dim: 10, Sections: [3]int{0, 3, 2}},
		"spread":   {Kind: RopeLinear, Theta: 50, Dim: 10, Factor: 2, Sections: [3]int{2, 2, 1}, Spread: true},
	} {
		axisOf := map[string][]int{"in a row": {0, 1, 1, 2, 2}, "axial": {1, 1, 1, 2, 2}, "spread": {0, 1, 2, 0, 1}}[name]
		t.Run(name, func(t *testing.T) {
			a := NewAttention("a", width, heads, heads)
			a.Rope = NewAngles(rope, nil)
			m, err := NewModel(width, MSE{}, Options{Seed: 1}, a)
			require.NoError(t, err)
			p := m.pass
			begin := func() *Tensor {
				require.NoError(t, p.Batch.Shape(rows, 2, nil))
				require.NoError(t, p.Batch.Place(axes, 10))
				p.Begin()
				x := p.Get(width)
				require.NoError(t, snug.Copy(x.View, kerneltest.Uniform(3, rows*width)))
				return x
			}
			x := begin()
			require.NoError(t, a.Rope.PrepareBatch(p))
			bytes := a.Rope.Bytes()
			q := p.Get(width)
			copy(q.Float32s(), x.Float32s())
			k := p.Get(width)
			copy(k.Float32s(), x.Float32s())
			a.rotate(p, q, k, fused.Rotary)
			require.Equal(t, q.Float32s(), k.Float32s())
			require.NoError(t, p.Failed())
			require.Equal(t, bytes, a.Rope.Bytes())
			inverse, _, err := rope.Frequencies(0)
			require.NoError(t, err)
			if rope.Kind == RopeAxial {
				require.InDeltaSlice(t, []float64{1, math.Pow(50, -1/3.), math.Pow(50, -2/3.), 1, math.Pow(50, -.5)}, inverse, 1e-6)
			}
			for i := range rows * heads {
				for j, f := range inverse {
					from, to := x.Float32s()[i*10:], q.Float32s()[i*10:]
					sin, cos := math.Sincos(float64(axes[axisOf[j]][i/heads]) * float64(f))
					one, two := float64(from[j]), float64(from[5+j])
					require.InDelta(t, one*cos-two*sin, to[j], 1e-5)
					require.InDelta(t, two*cos+one*sin, to[5+j], 1e-5)
				}
			}
			a.rotate(p, q, k, fused.RotaryBackward)
			require.Equal(t, q.Float32s(), k.Float32s())
			for i, v := range x.Float32s() {
				require.InDelta(t, v, q.Float32s()[i], 1e-6)
			}
			want := a.Forward(p, x)
			require.NoError(t, p.Failed())
			have := Tiled{Layer: a, Rows: rows / 2}.Forward(p, x)
			require.NoError(t, p.Failed())
			require.Equal(t, want.Float32s(), have.Float32s())
		})
	}
	require.ErrorIs(t, Rope{Kind: RopeAxial, Theta: 50, Dim: 4}.Check(), snug.ErrConfig)
	require.ErrorIs(t, Rope{Kind: RopeAxial, Theta: 50, Dim: 6, Sections: [3]int{1, 1, 1}, Spread: true}.Check(), snug.ErrConfig)
	var none *Batch
	require.ErrorIs(t, none.Place(axes, 10), snug.ErrShape)
	plain := NewAngles(Rope{Kind: RopeDefault, Theta: 50, Dim: 10}, nil)
	p, err := NewPass(Options{})
	require.NoError(t, err)
	require.NoError(t, p.Batch.Shape(rows, 1, nil))
	require.NoError(t, p.Batch.Place(axes, 10))
	require.ErrorIs(t, plain.PrepareBatch(p), snug.ErrConfig)
	require.ErrorIs(t, p.Batch.Place(axes, 9), snug.ErrShape)
}
