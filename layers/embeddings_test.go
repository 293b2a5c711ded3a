package layers

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// TestEmbeddings compares an Embedding that has vectors in place of some rows with the definition, in one piece and in tiles of
// whole sequences or of single rows.
func TestEmbeddings(t *testing.T) {
	const width, scale = 3, 1.5
	b := Batch{}
	require.NoError(t, b.Shape(8, 2, nil))
	b.Tokens = []int32{0, 4, 4, 1, 4, 2, 0, 4}
	number := func(i int) float32 { return float32(i%7) - 2.5 }
	list := func(n, first int) (x []float32) {
		for i := range n {
			x = append(x, number(first+i))
		}
		return x
	}
	for name, test := range map[string]struct {
		dt, values snug.DType
		tile       int
		positions  bool
	}{
		"whole":                  {snug.F32, snug.F32, 0, true},
		"without positions":      {snug.F32, snug.F32, 0, false},
		"tiles of sequences":     {snug.F32, snug.F32, 4, true},
		"tiles of three rows":    {snug.F32, snug.F32, 3, true},
		"two types":              {snug.BF16, snug.F32, 3, true},
		"two types, one of each": {snug.BF16, snug.F32, 0, false},
		"16 bits":                {snug.F16, snug.F16, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPass(Options{DType: test.dt})
			require.NoError(t, err)
			in := func(x []float32, dt snug.DType) snug.View {
				v, _, err := snug.MakeView(snug.CPU(), dt, len(x))
				require.NoError(t, err)
				require.NoError(t, amp.Cast(v, x))
				return v
			}
			out := func(v snug.View) []float32 {
				x := make([]float32, v.Len())
				require.NoError(t, amp.Cast(x, v))
				return x
			}
			e := &Embedding{Table: &Param{Name: "table", Shape: []int{5, width}, Value: in(list(5*width, 0), test.dt), Trains: true}, Scale: scale}
			if test.positions {
				e.Positions = &Param{Name: "positions", Shape: []int{4, width}, Value: in(list(4*width, 3), test.dt), Trains: true}
			}
			rows, grad := []int32{1, 2, 4, 7}, make([]float32, 4*width)
			p.Batch = b
			p.Batch.Embeddings = Embeddings{Rows: rows, Values: in(list(4*width, 5), test.values), Grad: snug.ViewOf(grad)}
			grads := lost{"table": make([]float32, 5*width), "positions": make([]float32, 4*width)}
			p.Window = grads
			var l Layer = e
			if test.tile > 0 {
				l = Tiled{Layer: e, Rows: test.tile}
			}
			p.Begin()
			y := l.Forward(p, p.Get(0))
			require.NoError(t, p.Failed())
			var want []float32
			dy, dtable, dpositions := list(8*width, 1), make([]float32, 5*width), make([]float32, 4*width)
			var dvectors []float32
			for r := range 8 {
				vector := -1
				for i, at := range rows {
					if int(at) == r {
						vector = i
					}
				}
				for j := range width {
					position := float32(0)
					if test.positions {
						position = scale * number(3+r%4*width+j)
						dpositions[r%4*width+j] += scale * dy[r*width+j]
					}
					if vector < 0 {
						want = append(want, scale*number(int(b.Tokens[r])*width+j)+position)
						dtable[int(b.Tokens[r])*width+j] += scale * dy[r*width+j]
					} else {
						want = append(want, number(5+vector*width+j)+position)
						dvectors = append(dvectors, dy[r*width+j])
					}
				}
			}
			require.Equal(t, want, out(y.View))
			d := p.Get(width)
			require.NoError(t, amp.Cast(d.View, dy))
			x := p.Get(0)
			_, s := l.ForwardSave(p, x)
			l.Backward(p, x, s, d)
			require.NoError(t, p.Failed())
			require.Equal(t, dtable, []float32(grads["table"]))
			require.Equal(t, dpositions, []float32(grads["positions"]))
			require.Equal(t, dvectors, grad)

			p.Begin()
			p.Batch.Embeddings.Rows = []int32{1, 1, 4, 7}
			e.Forward(p, p.Get(0))
			require.ErrorIs(t, p.Failed(), snug.ErrShape)
		})
	}
}
