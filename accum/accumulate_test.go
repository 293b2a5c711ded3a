package accum

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestAccumulate compares Accumulate with its definition, on every device and for every type.
func TestAccumulate(t *testing.T) {
	g := []float32{1, -2.5, 0.1875, 3, 1024, -0.25, 7}
	acc := []float32{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}
	for _, n := range []int{0, 1, 7} {
		for _, beta := range []float32{0, 1, 0.75} {
			want := make([]float32, n)
			for i := range want {
				want[i] = float32(3*g[i]) + float32(beta*acc[i])
			}
			half, low := make([]snug.Float16, n), make([]snug.BFloat16, n)
			require.NoError(t, snug.FromFloat64(half, widened(g[:n])))
			require.NoError(t, snug.FromFloat64(low, widened(g[:n])))
			for _, v := range []snug.View{snug.ViewOf(g[:n]), snug.ViewOf(half), snug.ViewOf(low)} {
				got := append([]float32{}, acc[:n]...)
				require.NoError(t, Accumulate(got, v, 3, beta))
				require.Equal(t, want, got, v.DType())
			}
		}
	}
	kerneltest.NoAllocs(t, func() { _ = Accumulate(acc, g, 1, 0) })
}

func widened(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// TestAccumulateErrors: what does not fit is an error, and nothing is written.
func TestAccumulateErrors(t *testing.T) {
	acc := []float32{1, 2}
	require.ErrorIs(t, Accumulate(snug.ViewOf([]snug.BFloat16{1, 2}), acc, 1, 1), snug.ErrDType)
	require.ErrorIs(t, Accumulate(acc, snug.SliceView([]uint8{1, 2}), 1, 1), snug.ErrDType)
	require.ErrorIs(t, Accumulate(acc, []float32{1}, 1, 1), snug.ErrShape)
	require.ErrorIs(t, Accumulate(acc, acc, 1, 1), snug.ErrConfig)
	require.Equal(t, []float32{1, 2}, acc)
	for _, p := range kerneltest.Backends(t) {
		dev := p.Dev
		if dev == nil || dev.IsCPU() {
			continue
		}
		a, err := snug.Make[float32](dev, 2)
		require.NoError(t, err)
		require.ErrorIs(t, Accumulate(a, acc, 1, 1), snug.ErrDevice)
		g, err := snug.Make[snug.BFloat16](dev, 2)
		require.NoError(t, err)
		require.NoError(t, a.CopyIn([]float32{1, 2}))
		one := []snug.BFloat16{snug.ToBFloat16(0.5), snug.ToBFloat16(-3)}
		require.NoError(t, g.CopyIn(one))
		require.NoError(t, Accumulate(a, g, 1, 1))
		out := make([]float32, 2)
		require.NoError(t, a.CopyOut(out))
		require.Equal(t, []float32{1.5, -1}, out)
	}
}
