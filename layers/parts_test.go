package layers

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestParts: an Attention with Parts computes what it computes for sequences that are these parts, and one without sees the sequences.
func TestParts(t *testing.T) {
	const width, rows = 16, 12
	parts, whole := []int{0, 3, 7, 8, 12}, []int{0, 7, 12}
	positions := [][]int32{make([]int32, rows), {0, 1, 2, 0, 1, 2, 3, 0, 0, 1, 2, 3}, {3, 1, 2, 0, 1, 2, 3, 5, 0, 1, 2, 3}}
	of := func(seesParts bool, s Sample) (Sample, *Model) {
		rope := NewAngles(Rope{Kind: RopeAxial, Theta: 50, Dim: 8, Sections: [3]int{0, 2, 2}}, nil)
		list := make([]Layer, 2)
		for i, name := range []string{"0", "1"} {
			a := NewAttention(name, width, 2, 2)
			a.QKV, a.Bidirectional, a.Parts, a.Rope = []Linear{*NewLinear(name+".qkv", width, 3*width, true)}, true, seesParts, rope
			a.Out[0] = *NewLinear(name+".out", width, width, true)
			list[i] = a
		}
		m, err := NewModel(width, MSE{}, Options{Seed: 1}, list...)
		require.NoError(t, err)
		s.X, s.Y, s.Positions = kerneltest.Uniform(3, rows*width), kerneltest.Uniform(4, rows*width), positions
		return s, m
	}
	backprop := func(s Sample, m *Model) (float64, gradients) {
		w := gradients{}
		for name, v := range m.Trainable() {
			w[name] = make([]float32, v.Len())
		}
		loss, err := m.Backprop(context.Background(), s, 1, w)
		require.NoError(t, err)
		return loss.Mean(), w
	}
	for name, pair := range map[string][2]Sample{
		"the parts of sequences":  {{Starts: whole, Parts: parts}, {Starts: parts}},
		"without parts":           {{Starts: whole}, {Starts: whole}},
		"sequences of one length": {{Sequences: 2, Parts: []int{0, 6, 8, 12}}, {Starts: []int{0, 6, 8, 12}}},
	} {
		t.Run(name, func(t *testing.T) {
			loss, have := backprop(of(true, pair[0]))
			wantLoss, want := backprop(of(false, pair[1]))
			require.Equal(t, wantLoss, loss)
			require.Equal(t, want, have)
		})
	}
	loss, _ := backprop(of(false, Sample{Starts: whole, Parts: parts}))
	want, _ := backprop(of(false, Sample{Starts: whole}))
	require.Equal(t, want, loss)

	var b Batch
	require.ErrorIs(t, b.Part([]int{0, 1}), snug.ErrShape)
	require.ErrorIs(t, (*Batch)(nil).Part(nil), snug.ErrShape)
	require.NoError(t, b.Shape(rows, 0, whole))
	for _, bad := range [][]int{nil, {0}, {0, 12}, {0, 3, 8, 12}, {0, 7, 7, 12}, {0, 12, 12}, {0, 7, 13, 12}, {1, 7, 12}, {0, 7, 11}, {0, 7, 3, 12}} {
		require.ErrorIs(t, b.Part(bad), snug.ErrShape, bad)
	}
	s, m := of(true, Sample{Starts: whole, Parts: []int{0, 12}})
	_, err := m.Evaluate(context.Background(), s)
	require.ErrorIs(t, err, snug.ErrShape)
	s.Parts, s.Positions = parts, [][]int32{{-1}}
	_, err = m.Evaluate(context.Background(), s)
	require.ErrorIs(t, err, snug.ErrShape)
	s.Positions = positions
	tiled, err := NewModel(width, MSE{}, Options{}, Tiled{Layer: m.layers[0], Rows: 7})
	require.NoError(t, err)
	_, err = tiled.Evaluate(context.Background(), s)
	require.ErrorIs(t, err, snug.ErrConfig)
}
