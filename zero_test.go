package snug_test

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestZeroValues calls everything that is exported with nil and zero values.
func TestZeroValues(t *testing.T) {
	kerneltest.Zero(t,
		(*snug.Device)(nil), new(snug.Device), (*snug.Graph)(nil), new(snug.Graph),
		snug.View{}, new(snug.View), (*snug.View)(nil), snug.DType(0), snug.DType(255), snug.BFloat16(0), snug.NonFinite{},
		snug.Array[float32]{}, snug.Array[snug.Float16]{}, snug.Array[snug.BFloat16]{}, snug.Array[uint8]{}, snug.Array[int32]{},
		snug.CPU(), snug.Open, snug.OpenOn, snug.ParseDType, snug.CommonDevice, snug.MakeView, snug.ToBFloat16,
		snug.Make[float32], snug.Make[uint8], snug.Wrap[float32], snug.Wrap[int32], snug.FromSlice[float32], snug.SliceView[uint8],
		snug.ViewOf[[]float32], snug.ViewOf[snug.View], snug.ViewOf[snug.Array[float32]], snug.Host[float32],
		snug.Copy[[]float32, snug.View], snug.Copy[snug.View, snug.View], snug.Copy[snug.Array[float32], []float32],
		snug.FromFloat64[[]float32], snug.FromFloat64[snug.View], snug.ToFloat64[snug.Array[snug.Float16]],
		snug.Float16s[uint16], snug.BFloat16s[uint16],
	)
}

// TestNoDevice: what is nil or was not opened is no device, and not the CPU.
func TestNoDevice(t *testing.T) {
	for name, dev := range map[string]*snug.Device{"nil": nil, "not opened": new(snug.Device)} {
		require.False(t, dev.IsCPU(), name)
		require.Equal(t, "none", dev.String(), name)
		for _, n := range []int{0, 1, math.MaxInt / 8} {
			_, err := snug.Make[float32](dev, n)
			require.ErrorIs(t, err, snug.ErrDevice, name)
			_, err = snug.Wrap[float32](dev, 64, n)
			require.ErrorIs(t, err, snug.ErrDevice, name)
			_, _, err = snug.MakeView(dev, snug.F32, n)
			require.ErrorIs(t, err, snug.ErrDevice, name)
		}
		_, _, memory := dev.Memory()
		_, copier := device.Copier(dev)
		_, capture := dev.Capture(func() error { return nil })
		for _, err := range []error{dev.Sync(), dev.Close(), device.Launch(dev, &double{}), memory, copier, capture} {
			require.ErrorIs(t, err, snug.ErrDevice, name)
		}
	}
	dev, err := snug.OpenOn("handles", 0)
	require.NoError(t, err)
	_, err = dev.Capture(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.NoError(t, dev.Close())
}

// TestSizesAtEdges has lengths and addresses around what an int and an address hold.
func TestSizesAtEdges(t *testing.T) {
	far := kerneltest.Backends(t)[2].Dev
	for _, n := range []int{math.MinInt, -1, math.MaxInt/4 + 1, math.MaxInt - 1, math.MaxInt} {
		for _, dev := range []*snug.Device{snug.CPU(), far} {
			_, err := snug.Make[float32](dev, n)
			require.ErrorIs(t, err, snug.ErrShape, "%d on %s", n, dev)
			_, _, err = snug.MakeView(dev, snug.I32, n)
			require.ErrorIs(t, err, snug.ErrShape, "%d on %s", n, dev)
		}
		_, err := snug.Wrap[float32](far, 64, n)
		require.ErrorIs(t, err, snug.ErrShape, n)
	}
	_, err := snug.Make[float32](far, math.MaxInt/4)
	require.ErrorIs(t, err, snug.ErrNoMemory)
	if math.MaxInt > math.MaxInt32 { // more than Go can address
		_, err = snug.Make[float32](snug.CPU(), math.MaxInt/4)
		require.ErrorIs(t, err, snug.ErrNoMemory)
	}
	for _, addr := range []uintptr{0, 1, math.MaxUint, math.MaxUint - 3, math.MaxUint - 7} {
		_, err := snug.Wrap[float32](far, addr, 2)
		require.ErrorIs(t, err, snug.ErrConfig, "%#x", addr)
	}
	w, err := snug.Wrap[float32](far, math.MaxUint-11, 2)
	require.NoError(t, err)

	v, a := snug.ViewOf([]snug.Float16{1, 2, 3}), snug.FromSlice([]float32{1, 2, 3})
	edges := []int{math.MinInt, -1, 0, 1, 3, 4, math.MaxInt}
	for _, lo := range edges {
		for _, hi := range edges {
			inside := 0 <= lo && lo <= hi && hi <= 3
			part, err := v.Slice(lo, hi)
			require.Equal(t, inside, err == nil, "%d:%d", lo, hi)
			slice, err := a.Slice(lo, hi)
			require.Equal(t, inside, err == nil, "%d:%d", lo, hi)
			if inside {
				require.Equal(t, hi-lo, part.Len())
				require.Equal(t, hi-lo, slice.View().Len())
				continue
			}
			require.ErrorIs(t, err, snug.ErrShape)
			require.Zero(t, slice)
		}
	}
	require.NoError(t, w.Close())
}
