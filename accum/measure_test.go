package accum

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// sameOverflows compares with all NaNs equal.
func sameOverflows(t *testing.T, want, got []snug.NonFinite, msg ...any) {
	require.Equal(t, fmt.Sprint(want), fmt.Sprint(got), msg...)
}

// TestOverflows has micro-batches with and without non-finite values: the first
// with any is reported gradient by gradient.
func TestOverflows(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, acc := range []snug.DType{snug.F32, snug.BF16} {
			for _, dt := range floats {
				overflows(t, p, acc, dt)
			}
		}
	})
}

func overflows(t *testing.T, p kerneltest.Backend, acc, dt snug.DType) {
	params := []Param{{"a", 3}, {"none", 0}, {"b", 4}}
	buffer := kerneltest.PutFloats(t, p, acc, make([]float32, 7))
	w := newWindow(t, params, Options{Schedule: Constant(4), Measure: true, DType: acc, Buffer: buffer.View})
	step := func(a, b []float32) {
		require.NoError(t, w.Begin(1))
		require.NoError(t, w.Add("b", kerneltest.PutFloats(t, p, dt, b).View))
		require.NoError(t, w.Add("none", kerneltest.PutFloats(t, p, dt, nil).View))
		require.NoError(t, w.Add("a", kerneltest.PutFloats(t, p, dt, a).View))
		_, err := w.End()
		require.NoError(t, err)
	}
	good, fine := []float32{1, 2, 3}, []float32{1, 2, 3, 4}
	step(good, fine)
	require.Empty(t, w.NonFinite())
	step([]float32{1, 2, inf}, []float32{1, nan, -inf, 4})
	first := []snug.NonFinite{{Name: "a", Count: 1, Index: 2, Value: inf, Micro: 1}, {Name: "b", Count: 2, Index: 1, Value: nan, Micro: 1}}
	sameOverflows(t, first, w.NonFinite())
	step(good, fine)
	sameOverflows(t, first, w.NonFinite(), "what stays in the sum is not found again")
	step(good, []float32{nan, 1, 1, nan})
	sameOverflows(t, append(first, snug.NonFinite{Name: "b", Count: 2, Index: 0, Value: nan, Micro: 3}), w.NonFinite())
	w.Skip()
	require.Empty(t, w.NonFinite())
	step(good, fine)
	require.Empty(t, w.NonFinite())
	require.NoError(t, w.Begin(1))
	require.NoError(t, w.Add("a", kerneltest.PutFloats(t, p, dt, []float32{nan, 1, 1}).View))
	w.Reset()
	step(good, fine)
	require.Empty(t, w.NonFinite(), "a micro-batch was thrown away")
}

// TestOverflowsInto has kernels that add in place, beside gradients that are
// added.
func TestOverflowsInto(t *testing.T) {
	w := newWindow(t, []Param{{"v", 2}, {"w", 2}}, Options{Schedule: Constant(3), Measure: true})
	step := func(v, g []float32) {
		require.NoError(t, w.Begin(1))
		require.NoError(t, w.Add("v", snug.ViewOf(v)))
		addInto(t, w, g)
		_, _, err := w.Into("v")
		require.ErrorIs(t, err, snug.ErrConfig, "it was measured")
		_, err = w.End()
		require.NoError(t, err)
	}
	step([]float32{1, 1}, []float32{1, 2})
	require.Empty(t, w.NonFinite())
	step([]float32{1, 1}, []float32{1, inf})
	want := []snug.NonFinite{{Name: "w", Count: 1, Index: 1, Value: inf, Micro: 1}}
	sameOverflows(t, want, w.NonFinite())
	step([]float32{inf, nan}, []float32{1, 2})
	sameOverflows(t, append(want, snug.NonFinite{Name: "v", Count: 2, Index: 0, Value: inf, Micro: 2}), w.NonFinite())
}

// TestRescale has a loss scale that changes within a window.
func TestRescale(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, acc := range []snug.DType{snug.F32, snug.BF16} {
			buffer := kerneltest.PutFloats(t, p, acc, make([]float32, 3))
			scaler := &fakeScaler{scale: 8}
			w := newWindow(t, []Param{{"w", 3}}, Options{Schedule: Constant(2), Scaler: scaler, Measure: true, DType: acc, Buffer: buffer.View})
			step := func(weight float64, g ...float32) {
				for i := range g {
					g[i] *= scaler.scale
				}
				require.NoError(t, w.Begin(weight))
				require.NoError(t, w.Add("w", kerneltest.Put(t, p, g).View))
				_, err := w.End()
				require.NoError(t, err)
			}
			step(1, 1, 2, 4)
			scaler.scale = 3
			require.ErrorIs(t, w.Begin(1), snug.ErrConfig, "not a power of two apart")
			scaler.scale = 2
			step(3, 5, 2, 0)
			require.Equal(t, []float32{8, 4, 2}, buffer.Get(), "twice the mean")
			require.InDelta(t, (21+3*29)/4.0, w.Moments().Squares, 1e-9, "without the scale")
			w.Reset()
			scaler.scale = 6
			step(1, 1, 1, 1)
			require.Equal(t, []float32{6, 6, 6}, buffer.Get(), "between windows it may change by any factor")
		}
	})
	w := one(t, 1, Options{Schedule: Constant(3)})
	require.NoError(t, w.Rescale(4), "nothing to rescale")
	micro(t, w, 1, 3)
	for _, bad := range []float32{3, 0, -2, nan, inf, 0x1p-149} {
		require.ErrorIs(t, w.Rescale(bad), snug.ErrConfig, "%v", bad)
	}
	require.NoError(t, w.Rescale(0.25))
	require.Equal(t, []float32{0.75}, mean(t, w, "w"))
	require.NoError(t, w.Begin(1))
	require.ErrorIs(t, w.Rescale(2), snug.ErrConfig, "a micro-batch is open")
}

// TestLongPieces: threads have several packs of their piece in flight, and give the sums of the CPU.
//
//check:in ordered
//check:not checked
func TestLongPieces(t *testing.T) {
	const n = 1<<21 + 1234 // in pieces of 2^12
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		pass := func(dev *snug.Device) (sums []float32, m Moments) {
			buffer, _, err := snug.MakeView(dev, snug.F32, n) // which starts where packs do
			require.NoError(t, err)
			g, _, err := snug.MakeView(dev, dt, n)
			require.NoError(t, err)
			w := newWindow(t, []Param{{"a", n}}, Options{Schedule: Constant(2), Measure: true, Buffer: buffer})
			for i := range uint64(2) {
				require.NoError(t, snug.Copy(g, kerneltest.PutFloats(t, kerneltest.Backend{}, dt, kerneltest.Uniform(i, n)).View))
				require.NoError(t, w.Begin(1))
				require.NoError(t, w.Add("a", g))
				_, err := w.End()
				require.NoError(t, err)
			}
			require.Empty(t, w.NonFinite())
			sums = make([]float32, n)
			require.NoError(t, snug.Copy(snug.SliceView(sums), buffer))
			return sums, w.Moments()
		}
		want, moments := pass(snug.CPU())
		for _, p := range kerneltest.Backends(t)[2:] {
			got, m := pass(p.Dev)
			require.True(t, slices.Equal(want, got), "%s, %s", p.Name, dt)
			require.InEpsilon(t, moments.Squares, m.Squares, 1e-12, "%s, %s", p.Name, dt)
		}
	}
}
