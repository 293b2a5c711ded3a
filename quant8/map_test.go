package quant8

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
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
//
//check:in tiers arm64
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

// TestGoldenLinearMaps compares with bitsandbytes' maps, which torch's vector
// code computed.
//
//check:in tiers arm64 arm64-go
func TestGoldenLinearMaps(t *testing.T) {
	g := openGolden(t, "maps")
	for name, isSigned := range map[string]bool{"linear.signed": true, "linear.unsigned": false} {
		want, got := g.goldenMap(name), LinearMap(isSigned)
		require.NoError(t, want.check())
		require.NoError(t, got.check())
		for c := range want {
			require.InDelta(t, want[c], got[c], 0x1p-24, "%s, code %d", name, c)
		}
	}
	s := LinearMap(true)
	require.Equal(t, []float32{-1, 0, 0, 1}, []float32{s[0], s[127], s[128], s[255]})
}

// TestQuantileMap counts the codes of the vector that a map is of.
func TestQuantileMap(t *testing.T) {
	x := kerneltest.Normal(4, 100_000)
	m, err := QuantileMap(x)
	require.NoError(t, err)
	require.NoError(t, m.check())
	most := max(-m[0], m[255])
	require.EqualValues(t, 1, most)
	zero := slices.Index(m[:], 0)
	require.InDelta(t, 127, zero, 3)
	// By a scale that makes the quantiles those of x. The 0 splits the code next
	// to it, and the last codes have the tails.
	count := make([]int, 256)
	scale := quantile(x, 254.5/255)
	if s := -quantile(x, 0.5/255); s > scale {
		scale = s
	}
	for _, v := range x {
		count[nearer(m, max(min(v/scale, 1), -1))]++
	}
	for c := 3; c < 253; c++ {
		if c < zero-1 || c > zero+1 {
			require.InDelta(t, len(x)/255, count[c], 90, "code %d", c)
		}
	}

	m, err = QuantileMap([]float32{0, 0, -3, 1.5})
	require.NoError(t, err)
	require.NoError(t, m.check())
	require.Equal(t, []float32{-1, 0, 0.5}, slices.Compact(slices.Clone(m[:])))
	require.False(t, slices.ContainsFunc(m[:], func(v float32) bool { return v == 0 && math.Signbit(float64(v)) }))
	one, err := QuantileMap([]float32{-2})
	require.NoError(t, err)
	require.Equal(t, []float32{-1, 0}, slices.Compact(one[:]))

	for _, bad := range [][]float32{nil, {0, 0}} {
		_, err = QuantileMap(bad)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	_, err = QuantileMap([]float32{1, float32(math.NaN())})
	require.ErrorIs(t, err, snug.ErrNonFinite)
	require.ErrorContains(t, err, "x[1]")
}

func quantile(x []float32, p float64) float32 {
	return slices.Sorted(slices.Values(x))[int(math.Round(p*float64(len(x)-1)))]
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
