package rowwise

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSoftcapError(t *testing.T) {
	x := float32s(4099, 20)
	for _, slope := range []float32{1, -0.75} {
		eachTier(t, func(t *testing.T, k tier) {
			y := make([]float32, len(x))
			copy(y, x)
			k.Softcap(y, slope, 0.5) // a power of 2
			worst := 0.0
			for i, v := range x {
				worst = max(worst, ulps(2*y[i], math.Tanh(float64(slope*v))))
			}
			require.Less(t, worst, 2.0)
			require.Greater(t, worst, 0.5, "the sweep found nothing")
		})
	}
}

func TestSoftcapLimits(t *testing.T) {
	for _, c := range []struct{ x, want float32 }{
		{0, 0}, {float32(math.Copysign(0, -1)), 0}, {0x1p-149, 0x1p-149}, {-1e-30, -1e-30}, {10, 1}, {-10, -1}, {100, 1},
		{math.MaxFloat32, 1}, {-math.MaxFloat32, -1}, {inf, 1}, {-inf, -1}, {nan, nan},
	} {
		eachTier(t, func(t *testing.T, k tier) {
			row := make([]float32, 17)
			for i := range row {
				row[i] = c.x
			}
			k.Softcap(row, 1, 1)
			for _, y := range row {
				if c.want != c.want {
					require.True(t, y != y)
					continue
				}
				require.Equal(t, c.want, y, "tanh(%v)", c.x)
			}
		})
	}
}

// TestSoftcapSlopes compares with the derivative of the exact tanh.
func TestSoftcapSlopes(t *testing.T) {
	const scale, limit = 0.5, 30
	x := float32s(40009, 200)
	eachTier(t, func(t *testing.T, k tier) {
		y, slopes := make([]float32, len(x)), make([]float32, len(x))
		copy(y, x)
		k.Softcap(y, scale/limit, limit)
		k.SoftcapSlopes(slopes, y, 1/float32(limit), scale)
		for i, v := range x {
			want := scale / math.Pow(math.Cosh(float64(v)*scale/limit), 2)
			require.InDelta(t, want, slopes[i], 4e-7*scale, "x %v", v)
		}
	})
}
