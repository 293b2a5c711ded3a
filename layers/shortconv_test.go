package layers

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestContinues: rows of sequences one at a time, each from its state, beside one that is of no sequence, have the output of whole ones.
func TestContinues(t *testing.T) {
	const width = 6
	interleaved := NewDeltaNet("delta", width, 2, 4, 3, 5, 4)
	interleaved.In, interleaved.Interleaved = []Linear{*NewLinear("qkvz", width, 2*6+2*20, false), *NewLinear("ba", width, 8, false)}, true
	for name, b := range map[string]continues{
		"short convolution": NewShortConv("conv", width, 3), "delta net": NewDeltaNet("delta", width, 1, 3, 3, 2, 4), "interleaved": interleaved,
		"mamba-2": NewMamba2("mamba", width, 4, 3, 2, 5, 4), "mamba-2 of one tap": NewMamba2("mamba", width, 2, 1, 1, 3, 1),
		"a delta net of one tap": NewDeltaNet("delta", width, 2, 2, 2, 2, 1),
	} {
		t.Run(name, func(t *testing.T) { testContinue(t, b, width) })
	}
}

type continues interface {
	Layer
	StateLen() int
	Continue(p *Pass, x *Tensor, states []snug.View) *Tensor
}

func testContinue(t *testing.T, b continues, width int) {
	const rows, sequences = 5, 2
	for l := range b.Params {
		l.Value = snug.ViewOf(kerneltest.Normal(uint64(len(l.Name)), l.Len()))
	}
	p, err := NewPass(Options{})
	require.NoError(t, err)
	run := func(rows, sequences int, x []float32, do func(x *Tensor) *Tensor) []float32 {
		require.NoError(t, p.Batch.Shape(rows, sequences, nil))
		p.Begin()
		in := p.Get(width)
		copy(in.Float32s(), x)
		y := do(in)
		require.NoError(t, p.Failed())
		return append([]float32(nil), y.Float32s()...)
	}
	x := kerneltest.Normal(1, sequences*rows*width)
	want := run(sequences*rows, sequences, x, func(x *Tensor) *Tensor { return b.Forward(p, x) })
	states := []snug.View{snug.ViewOf(make([]float32, b.StateLen())), snug.ViewOf(make([]float32, b.StateLen()))}
	for row := range rows {
		var now []float32
		for s := range sequences {
			now = append(now, x[(s*rows+row)*width:][:width]...)
		}
		y := run(sequences+1, sequences+1, append(now, now[:width]...), func(x *Tensor) *Tensor { return b.Continue(p, x, states) })
		for s := range sequences {
			require.InDeltaSlice(t, want[(s*rows+row)*width:][:width], y[s*width:][:width], 1e-5)
		}
	}
}
