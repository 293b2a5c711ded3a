package quant8

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

func TestDynamicMap(t *testing.T) {
	s, u := DynamicMap(true), DynamicMap(false)
	require.NoError(t, s.check())
	require.NoError(t, u.check())
	require.Equal(t, float32(-0.99296875), s[0])
	require.Equal(t, float32(0), s[127])
	require.InEpsilon(t, 5.5e-7, s[128], 1e-6)
	require.Equal(t, float32(1), s[255])
	require.Equal(t, float32(0.99296875), s[254])
	require.Equal(t, float32(0), u[0])
	require.InEpsilon(t, 3.25e-7, u[1], 1e-6)
	require.InEpsilon(t, 0.996484375, u[254], 1e-7)
	require.Equal(t, float32(1), u[255])
	for i := 1; i <= 127; i++ {
		require.Equal(t, -s[127+i], s[127-i], "the signed map is symmetric but for 1")
	}
}

// TestDynamicMapDefinition compares with the midpoints in float64: the float32
// of the definition are within some units in the last place.
func TestDynamicMapDefinition(t *testing.T) {
	for _, signed := range []bool{true, false} {
		want := []float64{0, 1}
		for i := range 7 {
			n := 1 << i
			if !signed {
				n *= 2
			}
			for k := range n {
				x := math.Pow(10, float64(i-6)) * (0.1 + 0.9*(float64(k)+0.5)/float64(n))
				want = append(want, x)
				if signed {
					want = append(want, -x)
				}
			}
		}
		slices.Sort(want)
		m := DynamicMap(signed)
		for c := range m {
			require.InDelta(t, want[c], m[c], math.Abs(want[c])*0x1p-22, "signed %v, code %d", signed, c)
		}
	}
}

func TestDynamicMapIsACopy(t *testing.T) {
	m := DynamicMap(true)
	m[0] = -5
	require.NotEqual(t, m[0], DynamicMap(true)[0])
	require.NotEqual(t, m[0], signed().Map()[0])
}

func TestMapCheck(t *testing.T) {
	require.ErrorIs(t, (*Map)(nil).check(), snug.ErrConfig)
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), -0.5} {
		m := DynamicMap(false)
		m[255] = bad
		require.ErrorIs(t, m.check(), snug.ErrConfig, bad)
	}
	require.ErrorIs(t, new(Map).check(), snug.ErrConfig, "equal entries")
}
