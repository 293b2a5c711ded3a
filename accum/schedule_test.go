package accum

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestRamp has Megatron-LM's arithmetic: from 16 to 64 by 16 over 300 samples,
// that is a step for every 100.
func TestRamp(t *testing.T) {
	r := Ramp{Start: 16, Increment: 16, Global: 64, Over: 300}
	for seen, want := range map[float64]float64{0: 16, 99: 16, 100: 32, 199: 32, 200: 48, 299: 48, 300: 64, 1e9: 64} {
		require.Equal(t, Target{Weight: want}, r.Target(Progress{Weight: seen}), "after %v", seen)
	}
	odd := Ramp{Start: 10, Increment: 7, Global: 20, Over: 100}
	for seen, want := range map[float64]float64{0: 10, 49: 10, 50: 17, 99: 17, 100: 20} {
		require.Equal(t, Target{Weight: want}, odd.Target(Progress{Weight: seen}), "steps that do not end at Global, after %v", seen)
	}
	for _, flat := range []Ramp{{Start: 8, Global: 8, Over: 100}, {Start: 8, Increment: 4, Global: 8}, {Start: 4, Increment: 2, Global: 8}} {
		require.Equal(t, Target{Weight: 8}, flat.Target(Progress{}), "Megatron divides by zero")
	}
	for _, bad := range []Ramp{
		{}, {Start: 9, Increment: 1, Global: 8, Over: 1}, {Start: 1, Global: 8, Over: 1}, {Start: 1, Increment: 1, Global: 8, Over: -1},
		{Start: math.NaN(), Increment: 1, Global: 8}, {Start: 1, Increment: 1, Global: math.Inf(1), Over: 0},
	} {
		_, err := New([]Param{{"w", 1}}, Options{Schedule: bad})
		require.ErrorIs(t, err, snug.ErrConfig, "%+v", bad)
	}
}

// TestRampWindow has windows that grow while data goes by.
func TestRampWindow(t *testing.T) {
	w := one(t, 1, Options{Schedule: Ramp{Start: 2, Increment: 2, Global: 6, Over: 8}})
	var sizes []int
	for range 5 {
		for !micro(t, w, 1, 1) {
		}
		sizes = append(sizes, w.Micros())
		w.Reset()
	}
	require.Equal(t, []int{2, 2, 4, 6, 6}, sizes)
	require.Equal(t, Progress{Step: 5, Weight: 20}, w.Progress())
}

// TestWeightSchedule has batches of 100 tokens out of sequences of 30 and 45.
func TestWeightSchedule(t *testing.T) {
	w := one(t, 1, Options{Schedule: Weight(100), NonFinite: DropMicro})
	require.False(t, micro(t, w, 30, 1))
	require.False(t, micro(t, w, 45, 2))
	require.False(t, micro(t, w, 45, nan), "one that is dropped does not count")
	require.False(t, micro(t, w, 0, 7))
	require.True(t, micro(t, w, 30, 3))
	require.Equal(t, 105.0, w.Weight())
	require.InDelta(t, (30*1+45*2+30*3)/105.0, mean(t, w, "w")[0], 1e-6)
}

// TestZeroWeightWindow has a window without data: gradients of zero, of a weight
// of zero.
func TestZeroWeightWindow(t *testing.T) {
	w := one(t, 2, Options{Schedule: Constant(2)})
	micro(t, w, 0, nan, 1)
	require.True(t, micro(t, w, 0, 5, inf))
	require.Zero(t, w.Weight())
	require.Zero(t, w.Total())
	require.Equal(t, []float32{0, 0}, mean(t, w, "w"))
}
