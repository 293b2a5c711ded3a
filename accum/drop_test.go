package accum

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

func TestDropMicro(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, skip := range skips {
			dropMicro(t, p, skip)
		}
	})
}

func dropMicro(t *testing.T, p kerneltest.Backend, skip int) {
	params := []Param{{"a", 3}, {"b", 3*chunk + 1}}
	bucket := kerneltest.Put(t, p, make([]float32, 3+params[1].Len))
	w := newWindow(t, params, Options{Schedule: Constant(3), NonFinite: DropMicro, Buffer: bucket.View})
	put := func(dt snug.DType, x []float32) snug.View {
		return kerneltest.After(t, kerneltest.PutFloats(t, p, dt, append(make([]float32, skip), x...)).View, skip)
	}
	add := func(dt snug.DType, a, b []float32) bool {
		require.NoError(t, w.Begin(2))
		added, err := w.AddAll(kerneltest.Walk(
			kerneltest.Named{Name: "b", View: put(dt, b)},
			kerneltest.Named{Name: "a", View: put(dt, a)}))
		require.NoError(t, err)
		if !added {
			_, err := w.AddAll(kerneltest.Walk())
			require.ErrorIs(t, err, snug.ErrConfig, "it was dropped")
		}
		_, err = w.End()
		require.NoError(t, err)
		return added
	}
	bad := make([]float32, params[1].Len)
	bad[2*chunk+5], bad[2*chunk+9], bad[3*chunk] = -inf, nan, nan
	good := kerneltest.Uniform(1, params[1].Len)
	require.False(t, add(snug.BF16, []float32{1, 2, 3}, bad))
	require.Equal(t, []snug.NonFinite{{Name: "b", Count: 3, Index: 2*chunk + 5, Value: -inf, Micro: 0}}, w.NonFinite())
	require.Zero(t, w.Weight())
	require.Equal(t, make([]float32, len(bad)), bucket.Get()[3:], "zero while nothing counts")
	require.True(t, add(snug.F32, []float32{1, 2, 3}, good))
	require.False(t, add(snug.F16, []float32{1, 2, inf}, bad))
	require.Equal(t, []snug.NonFinite{
		{Name: "a", Count: 1, Index: 2, Value: inf, Micro: 2}, {Name: "b", Count: 3, Index: 2*chunk + 5, Value: -inf, Micro: 2},
	}, w.NonFinite()[1:])
	require.Equal(t, append([]float32{1, 2, 3}, good...), bucket.Get())
	require.Equal(t, 2.0, w.Weight())
	full, err := w.Flush()
	require.NoError(t, err)
	require.True(t, full, "dropped micro-batches count towards the size")
	require.Equal(t, 2, w.Stats().Dropped)
}

// TestFirstDrop has bad values in one piece of both parameters, walked in
// either order.
func TestFirstDrop(t *testing.T) {
	a, b := kerneltest.Slice("a", []float32{1, inf}), kerneltest.Slice("b", []float32{nan, 1})
	for _, grads := range [][]kerneltest.Named{{a, b}, {b, a}} {
		w := newWindow(t, []Param{{"a", 2}, {"b", 2}}, Options{NonFinite: DropMicro})
		require.NoError(t, w.Begin(1))
		added, err := w.AddAll(kerneltest.Walk(grads...))
		require.NoError(t, err)
		require.False(t, added)
		require.Equal(t, snug.NonFinite{Name: "a", Count: 1, Index: 1, Value: inf}, w.NonFinite()[0])
	}
}

func TestDropMicroTakesAddAllOnly(t *testing.T) {
	w := one(t, 1, Options{NonFinite: DropMicro})
	require.NoError(t, w.Begin(1))
	require.ErrorIs(t, w.Add("w", snug.ViewOf([]float32{1})), snug.ErrConfig)
	_, _, err := w.Into("w")
	require.ErrorIs(t, err, snug.ErrConfig)
}
