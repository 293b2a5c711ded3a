package attention

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// ulps returns the distance of got from want in units of the last place of
// want rounded to float32.
func ulps(got float32, want float64) float64 {
	_, e := math.Frexp(want)
	return math.Abs(float64(got)-want) / math.Ldexp(1, e-24)
}

func TestExp2(t *testing.T) {
	worst, at := 0.0, float32(0)
	check := func(x float32) {
		if u := ulps(exp2(x), math.Exp2(float64(x))); u > worst {
			worst, at = u, x
		}
	}
	for b := uint32(0); b <= math.Float32bits(128); b += 1009 { // every magnitude up to 128
		x := math.Float32frombits(b)
		if x < 128 {
			check(x)
		}
		if x <= 126 {
			check(-x)
		}
	}
	t.Logf("worst error %.3f ulp at %g", worst, at)
	require.LessOrEqual(t, worst, 2.0)
}

func TestExp2Edges(t *testing.T) {
	inf := float32(math.Inf(1))
	below := math.Nextafter32
	for _, tc := range []struct{ x, want float32 }{
		{0, 1}, {float32(math.Copysign(0, -1)), 1}, {1e-40, 1}, {3, 8}, {-3, 0.125}, {127, 0x1p127}, {-126, 0x1p-126},
		{below(-126, -200), 0}, {-127, 0}, {-1e30, 0}, {-inf, 0}, {128, inf}, {1e30, inf}, {inf, inf},
	} {
		require.Equal(t, tc.want, exp2(tc.x), "exp2(%g)", tc.x)
	}
	nan := exp2(float32(math.NaN()))
	require.True(t, nan != nan)
	require.Less(t, exp2(below(128, 0)), inf)

	// Rows do the same.
	row := []float32{2, 1 - 127, -inf, 130, float32(math.NaN()), 0}
	require.Equal(t, float32(2.5), exp2Row(row[:2], 1)+exp2Row([]float32{0}, 1))
	require.Equal(t, []float32{2, 0x1p-127 * 0}, row[:2])
	exp2Row(row[2:], 1)
	require.Equal(t, []float32{0, inf}, row[2:4])
	require.True(t, row[4] != row[4])
	require.Equal(t, float32(0.5), row[5])
}

func BenchmarkExp2Row(b *testing.B) {
	row := make([]float32, 1024)
	b.SetBytes(1024)
	for b.Loop() {
		for i := range row {
			row[i] = -float32(i) / 100
		}
		exp2Row(row, 0)
	}
}
