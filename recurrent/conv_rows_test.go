package recurrent

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestConvXRow: rows that lie further apart have the values of rows side by side, and what lies between stays.
func TestConvXRow(t *testing.T) {
	for name, c := range map[string]Conv{"silu": {SiLU: true}, "gates": {Gates: true}} {
		t.Run(name, func(t *testing.T) {
			c.Batch, c.Channels, c.Taps = Batch{Rows: 40, Starts: []int{0, 1, 40}}, 5, 4
			width := c.width()
			row := width + 3
			x, w, dy := kerneltest.Normal(1, 40*width), kerneltest.Normal(2, 20), kerneltest.Normal(3, 200)
			far, dfar := kerneltest.Normal(4, 40*row), kerneltest.Normal(5, 40*row)
			want := append([]float32(nil), dfar...)
			for i := range 40 {
				copy(far[i*row:][:width], x[i*width:])
			}
			y, dx, dw := [2][]float32{make([]float32, 200), make([]float32, 200)}, make([]float32, len(x)), [2][]float32{make([]float32, 20), make([]float32, 20)}
			require.NoError(t, ConvForward(y[0], x, w, nil, c))
			require.NoError(t, ConvBackward(dx, dw[0], nil, dy, x, w, nil, c, snug.Into{}))
			c.XRow = row
			require.NoError(t, ConvForward(y[1], far, w, nil, c))
			require.NoError(t, ConvBackward(dfar, dw[1], nil, dy, far, w, nil, c, snug.Into{}))
			require.Equal(t, y[0], y[1])
			require.Equal(t, dw[0], dw[1])
			for i := range 40 {
				copy(want[i*row:][:width], dx[i*width:])
			}
			require.Equal(t, want, dfar)
			c.XRow = width - 1
			require.ErrorIs(t, ConvForward(y[1], far, w, nil, c), snug.ErrShape)
		})
	}
}
