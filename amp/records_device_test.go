package amp

import (
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestRecordsOnDevices: a pass waits once and allocates nothing on the device, and takes nothing from what passes before
// have left in the same memory.
func TestRecordsOnDevices(t *testing.T) {
	for _, p := range kerneltest.Backends(t)[2:] {
		t.Run(p.Name, func(t *testing.T) {
			bad := kerneltest.Uniform(1, 9001)
			for i := 0; i < len(bad); i += 100 {
				bad[i] = nan
			}
			x := kerneltest.Uniform(2, 9001)
			spoilt, short := kerneltest.Put(t, p, bad), kerneltest.Put(t, p, x[:100])
			long := kerneltest.Put(t, p, x)
			free, _, err := p.Dev.Memory()
			require.NoError(t, err)
			for range 2 {
				stats, err := Measure(kerneltest.Walk(kerneltest.Named{Name: "x", View: spoilt.View}))
				require.NoError(t, err)
				require.Equal(t, 91, stats.NonFinite)
				before := device.Counts(p.Dev)
				stats, err = Measure(kerneltest.Walk(kerneltest.Named{Name: "x", View: short.View}, kerneltest.Named{Name: "y", View: long.View}))
				require.NoError(t, err)
				require.NoError(t, stats.Err())
				require.InEpsilon(t, norm(append(x[:100:100], x...)), stats.Norm, 1e-12)
				require.Equal(t, driver.Counts{Waits: 1, ToHost: 1}, device.Counts(p.Dev).Minus(before))
			}
			after, _, err := p.Dev.Memory()
			require.NoError(t, err)
			require.Equal(t, free, after)
		})
	}
}

// TestLongPieces: threads have several packs of their piece in flight.
//
//check:in ordered
//check:not checked
func TestLongPieces(t *testing.T) {
	const n = 3<<21 + 1234 // in pieces of 2^13
	for _, p := range kerneltest.Backends(t)[2:] {
		t.Run(p.Name, func(t *testing.T) {
			for _, dt := range []snug.DType{snug.F32, snug.BF16} {
				part := roundAll(dt, kerneltest.Uniform(3, 7919))
				x := make([]float32, n)
				for lo := 0; lo < n; lo += len(part) {
					copy(x[lo:], part)
				}
				bad := []int{4097, 4098, 8191 + 5<<13, 1 << 22, n - 1}
				for _, i := range bad {
					x[i] = inf
				}
				whole, _, err := snug.MakeView(p.Dev, dt, n)
				require.NoError(t, err)
				require.NoError(t, snug.Copy(whole, kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x).View))
				grads := kerneltest.Walk(kerneltest.Named{Name: "x", View: whole})
				stats, err := Clip(grads, 4, 1)
				require.NoError(t, err)
				sameOverflows(t, []snug.NonFinite{{Name: "x", Count: len(bad), Index: bad[0], Value: inf, Micro: -1}}, stats.Overflows)
				for i := range x {
					x[i] = round(dt, x[i]*ClipCoef(4, 1))
				}
				host := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x)
				got := kerneltest.PutFloats(t, kerneltest.Backend{}, dt, make([]float32, n))
				require.NoError(t, snug.Copy(got.View, whole))
				require.True(t, slices.Equal(host.Get(), got.Get()))
				for _, i := range bad {
					x[i] = 0
				}
				require.NoError(t, snug.Copy(whole, kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x).View))
				stats, err = Measure(grads)
				require.NoError(t, err)
				require.InEpsilon(t, norm(x), stats.Norm, 1e-12)
				_, err = ClipValue(kerneltest.Walk(kerneltest.Named{Name: "x", View: kerneltest.After(t, whole, 1)}), 0.25)
				require.NoError(t, err, "elements that do not start where packs do")
			}
		})
	}
}
