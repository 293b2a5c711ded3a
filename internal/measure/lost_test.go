package measure

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLost(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	var l Lost
	l.Count([]float32{1, 1, 1, 1, 1, inf, nan}, []float32{1, 1.25, 1.5, nan, inf, 3, 3}, []float32{1, 1, 1.5, nan, inf, 3, 3})
	require.Equal(t, Lost{Updates: 2, Lost: 1, Squares: 0.3125, LostSquares: 0.0625}, l)
	require.Equal(t, 0.5, l.Share())
	require.InDelta(t, math.Sqrt(0.2), l.NormShare(), 1e-15)
	l.Remedy = "more bits"
	require.Equal(t, "50.00 % of 2 updates lost to rounding, 44.72 % of their norm; what would help: more bits", l.String())
	l.Stochastic = true
	require.Contains(t, l.String(), "none on average")
	sum := Lost{}
	sum.Add(l)
	sum.Add(l)
	require.EqualValues(t, 4, sum.Updates)
	require.Equal(t, 0.5, sum.Share())
	require.Zero(t, Lost{}.Share())
	require.Zero(t, Lost{}.NormShare())
	require.Equal(t, "0.00 % of 0 updates lost to rounding, 0.00 % of their norm", Lost{}.String())
}
