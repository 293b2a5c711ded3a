package quant8

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSchedules(t *testing.T) {
	linear := Linear(1, 0.5, 10)
	require.Equal(t, float32(1), linear(1))
	require.Equal(t, float32(0.75), linear(6))
	require.InDelta(t, 0.55, linear(10), 1e-7)
	require.Equal(t, float32(0.5), linear(11))
	require.Equal(t, float32(0.5), linear(1e9))
	for _, s := range []Schedule{Constant(3), Linear(3, 3, 5), Cosine(3, 3, 5), Linear(2, 3, 0), Cosine(2, 3, -1), Constant(3).WarmUp(0), Linear(9, 3, 1).WarmUp(-1)} {
		require.Equal(t, float32(3), s(6))
	}
	for _, s := range []Schedule{linear, Cosine(1, 0, 7), Constant(1).WarmUp(3)} {
		for step := -1; step < 12; step++ {
			require.False(t, s(step) < 0 || s(step) > 1, step)
		}
	}
	before := float32(2)
	for step := 1; step <= 21; step++ {
		now := Cosine(1, 0, 20)(step)
		require.Less(t, now, before)
		before = now
	}
}
