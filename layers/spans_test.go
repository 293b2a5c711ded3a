package layers

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// spansProperty: the mask of a batch is its definition.
func spansProperty(t *rapid.T) {
	b, starts := Batch{}, []int{0}
	lengths := rapid.SliceOfN(rapid.IntRange(1, 150), 1, 4).Draw(t, "lengths")
	equal := rapid.Bool().Draw(t, "equal")
	for i := range lengths {
		if equal {
			lengths[i] = lengths[0]
		}
		starts = append(starts, starts[i]+lengths[i])
	}
	rows := starts[len(lengths)]
	if equal {
		require.NoError(t, b.Shape(rows, len(lengths), nil))
	} else {
		require.NoError(t, b.Shape(rows, 0, starts))
	}
	span := make([]int, rows) // number of the span of a row, from 1
	var spans [][2]int
	for i, lo := range starts[:len(lengths)] {
		for at := lo; at < starts[i+1]; {
			n := rapid.IntRange(1, starts[i+1]-at).Draw(t, "rows")
			if rapid.Bool().Draw(t, "span") {
				spans = append(spans, [2]int{at, at + n})
				for r := at; r < at+n; r++ {
					span[r] = len(spans)
				}
			}
			at += n
		}
	}
	require.NoError(t, b.Span(spans))
	window := rapid.IntRange(0, 100).Draw(t, "window")
	b.Prefixes = rapid.Bool().Draw(t, "prefixes")
	have, err := b.mask(window)
	require.NoError(t, err)
	want, err := attention.NewMask(len(lengths), 1, b.Longest, b.Longest, func(s, _, i, j int) bool {
		q, k := starts[s]+i, starts[s]+j
		same := k < rows && q < rows && span[q] > 0 && span[q] == span[k]
		sees := (j <= i || same) && (window == 0 || j > i-window) || b.Prefixes && same
		return q < starts[s+1] && k < starts[s+1] && sees
	})
	require.NoError(t, err)
	require.Equal(t, want, have)
}

func TestSpansProperty(t *testing.T) { rapid.Check(t, spansProperty) }

// TestSpans: an Attention of two sequences that are one span each is Bidirectional; other layers do not see spans.
func TestSpans(t *testing.T) {
	a := NewAttention("a", 8, 2, 1)
	m, err := NewModel(8, MSE{}, Options{Seed: 1}, a)
	require.NoError(t, err)
	require.NoError(t, a.Out[0].Weight.With(true, func(w snug.View) error { return snug.Copy(w, kerneltest.Uniform(4, w.Len())) }))
	p := m.pass
	begin := func(spans [][2]int) *Tensor {
		require.NoError(t, p.Batch.Shape(160, 2, nil))
		require.NoError(t, p.Batch.Span(spans))
		p.Begin()
		x := p.Get(8)
		require.NoError(t, snug.Copy(x.View, kerneltest.Uniform(3, 160*8)))
		return x
	}
	have := append([]float32(nil), a.Forward(p, begin([][2]int{{0, 80}, {80, 160}})).Float32s()...)
	require.NoError(t, p.Failed())
	require.Positive(t, p.maskBytes())
	x := begin(nil)
	require.Zero(t, p.maskBytes())
	a.Bidirectional = true
	want := a.Forward(p, x)
	for i, w := range want.Float32s() {
		require.InDelta(t, w, have[i], 1e-5)
	}
	require.Equal(t, want.Float32s(), a.Forward(p, begin([][2]int{{3, 70}})).Float32s())
	a.Bidirectional, a.Plain = false, true
	a.Forward(p, begin([][2]int{{3, 70}}))
	require.ErrorIs(t, p.Failed(), snug.ErrConfig)
	a.Plain = false
	Tiled{Layer: a, Rows: 80}.Forward(p, begin([][2]int{{3, 70}}))
	require.ErrorIs(t, p.Failed(), snug.ErrConfig)
	var none *Batch
	require.ErrorIs(t, none.Span(nil), snug.ErrShape)
	require.NoError(t, m.Close())
}
