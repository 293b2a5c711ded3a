package optim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSeries(t *testing.T) {
	for _, x := range []float64{1e-30, 1e-4, 0.3, 0.5, 0.7, 0.9, 0.9999, 1 - 1e-9} {
		require.InEpsilon(t, math.Log(x), ln(x), 1e-14)
		if y := math.Log(x); y > -100 {
			require.InEpsilon(t, x, exp(y), 1e-12)
		}
	}
	require.Equal(t, 1.0, exp(0))
}

// TestWarm: the half-life of the slow moment, ln ½/ln β3 - 1, grows linearly.
func TestWarm(t *testing.T) {
	h := Hyper{Rule: AdEMAMix, Beta1: 0.9, Beta3: 0.9999, Alpha: 5}
	half := func(beta float64) float64 { return math.Log(0.5) / math.Log(beta) }
	for _, step := range []int{1, 10, 500, 999, 1000, 1001, 5000} {
		h.Step = step
		warm := h.Warm(200, 1000)
		done := math.Min(float64(step)/1000, 1)
		require.InEpsilon(t, half(0.9)+done*(half(0.9999)-half(0.9)), half(warm.Beta3), 1e-7, "step %d", step)
		require.InDelta(t, 5*math.Min(float64(step)/200, 1), warm.Alpha, 1e-12, "step %d", step)
		require.Equal(t, h, h.Warm(0, 0))
	}
}
