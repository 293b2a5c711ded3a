package layers

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestTiledSequencesWhole: a tile that cuts a sequence would hide rows from an attention.
func TestTiledSequencesWhole(t *testing.T) {
	for name, c := range map[string]struct {
		rows int
		l    Layer
		s    Sample
		ok   bool
	}{
		"a part of a sequence": {rows: 3, s: Sample{Sequences: 2}},
		"packed sequences":     {rows: 4, s: Sample{Starts: []int{0, 3, 8}}},
		"within a Residual":    {rows: 3, s: Sample{Sequences: 2}, l: Residual{Sequential{ReLU, NewAttention("a", 4, 2, 2)}}},
		"one sequence":         {rows: 4, s: Sample{Sequences: 2}, ok: true},
		"all rows":             {rows: 9, s: Sample{Starts: []int{0, 3, 8}}, ok: true},
		"no attention":         {rows: 3, s: Sample{Sequences: 2}, l: NewLinear("a", 4, 4, true), ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.l == nil {
				c.l = NewAttention("a", 4, 2, 2)
			}
			var out [2][]float32
			for i, l := range []Layer{Tiled{c.l, c.rows}, c.l} {
				m, err := NewModel(4, MSE{}, Options{Seed: 1}, l)
				require.NoError(t, err)
				for _, w := range m.Params() {
					copy(w.Value.Float32s(), kerneltest.Normal(3, w.Len()))
				}
				c.s.X, c.s.Y, out[i] = kerneltest.Normal(1, 32), kerneltest.Normal(2, 32), make([]float32, 32)
				err = m.Predict(t.Context(), out[i], c.s)
				if i == 0 && !c.ok {
					require.ErrorIs(t, err, snug.ErrShape)
					require.ErrorContains(t, err, fmt.Sprintf("a Tiled of %d rows", c.rows))
					_, err = m.Backprop(t.Context(), c.s, 1, gradients{})
					require.ErrorIs(t, err, snug.ErrShape)
					return
				}
				require.NoError(t, err)
			}
			require.Equal(t, out[1], out[0])
		})
	}
}

// TestChannelsFirst: elements that lie one after the other are not the channels of an image with channels first.
func TestChannelsFirst(t *testing.T) {
	c := func(layout conv.Layout, name string) *Conv {
		return NewConv(name, conv.Shape{In: 2, Out: 6, Dims: 2, Size: [3]int{4, 4}, Kernel: [3]int{1, 1}, Layout: layout}, false)
	}
	for _, layout := range []conv.Layout{conv.ChannelsFirst, conv.ChannelsLast} {
		t.Run(layout.String(), func(t *testing.T) {
			_, norm := NewModel(32, MSE{}, Options{}, c(layout, "c"), ReLU, NewLayerNorm("n", 6))
			_, within := NewModel(32, MSE{}, Options{}, Residual{Sequential{c(layout, "c"), NewRMSNorm("n", 6), GELU, NewConv("d", conv.Shape{In: 6, Out: 2, Dims: 2, Size: [3]int{4, 4}, Kernel: [3]int{1, 1}, Layout: layout}, false)}})
			_, loss := NewModel(32, NewCrossEntropy("h", 3, 6), Options{}, c(layout, "c"), Dropout{})
			for _, err := range []error{norm, within, loss} {
				if layout == conv.ChannelsLast {
					require.NoError(t, err)
					continue
				}
				require.ErrorIs(t, err, snug.ErrShape)
				require.ErrorContains(t, err, "images of 6 channels, first, and size [4 4 0]")
			}
		})
	}
	_, err := NewModel(32, MSE{}, Options{}, c(conv.ChannelsFirst, "c"), NewLayerNorm("n", 96))
	require.NoError(t, err, "a norm of whole images")
	_, err = NewModel(32, MSE{}, Options{}, c(conv.ChannelsFirst, "c"), NewLayerNorm("n", 4))
	require.NoError(t, err, "a norm of lines")
}

// TestDeepNesting: what rows are is asked once for each layer, however deep it lies.
func TestDeepNesting(t *testing.T) {
	var l Layer = ReLU
	for range 60 {
		l = Sequential{Residual{l}}
	}
	began := time.Now()
	_, err := NewModel(4, MSE{}, Options{}, l)
	require.NoError(t, err)
	require.Less(t, time.Since(began), 10*time.Second)
}
