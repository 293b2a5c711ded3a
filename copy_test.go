package snug_test

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

func TestCopy(t *testing.T) {
	backends := append(kerneltest.Backends(t), kerneltest.Backends(t)[2:]...) // two devices of every kind
	big := make([]float32, 1<<18+11)                                          // more than goes through the host at a time
	for i := range big {
		big[i] = float32(i)
	}
	for _, from := range backends {
		for _, to := range backends {
			for _, want := range [][]float32{{}, {1}, {1, 2, 3}, big} {
				src, dst := kerneltest.Put(t, from, want), kerneltest.Put(t, to, make([]float32, len(want)))
				require.NoError(t, snug.Copy(dst.View, src.View), "%s to %s", from.Name, to.Name)
				require.Equal(t, len(want), len(dst.Get()))
				require.True(t, len(want) == 0 || equal(want, dst.Get()), "%s to %s, %d elements", from.Name, to.Name, len(want))
			}
		}
	}
}

func equal(a, b []float32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestCopyOverlap(t *testing.T) {
	x := []float32{1, 2, 3, 4}
	require.NoError(t, snug.Copy(x[1:], x[:3]))
	require.Equal(t, []float32{1, 1, 2, 3}, x)

	dev := kerneltest.Backends(t)[2].Dev
	a, err := snug.Make[float32](dev, 4)
	require.NoError(t, err)
	require.NoError(t, a.CopyIn(x))
	low, err := a.Slice(0, 3)
	require.NoError(t, err)
	high, err := a.Slice(1, 4)
	require.NoError(t, err)
	require.ErrorIs(t, snug.Copy(low, high), snug.ErrConfig)
	require.NoError(t, snug.Copy(a, a))
	require.NoError(t, a.CopyOut(x))
	require.Equal(t, []float32{1, 1, 2, 3}, x)
}

func TestCopyErrors(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	there, err := snug.Make[float32](dev, 3)
	require.NoError(t, err)
	require.ErrorIs(t, snug.Copy([]float32{1}, []float32{1, 2}), snug.ErrShape)
	require.ErrorIs(t, snug.Copy(there, []float32{1}), snug.ErrShape)
	require.ErrorIs(t, snug.Copy(there, []snug.BFloat16{1, 2, 3}), snug.ErrDType)
	require.NoError(t, dev.Close())
	require.ErrorIs(t, snug.Copy(there, []float32{1, 2, 3}), snug.ErrDevice)
}

func TestMakeView(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		dev := p.Dev
		if dev == nil {
			dev = snug.CPU()
		}
		for _, dt := range []snug.DType{snug.F32, snug.F16, snug.BF16, snug.U8, snug.I32} {
			v, free, err := snug.MakeView(dev, dt, 5)
			require.NoError(t, err)
			require.Equal(t, dt, v.DType())
			require.Equal(t, 5, v.Len())
			require.Same(t, dev, v.Device())
			require.NoError(t, free())
			require.NoError(t, free(), "twice")
		}
		_, _, err := snug.MakeView(dev, 0, 5)
		require.ErrorIs(t, err, snug.ErrDType)
		_, _, err = snug.MakeView(dev, snug.F32, -1)
		require.ErrorIs(t, err, snug.ErrShape)
	})
}
