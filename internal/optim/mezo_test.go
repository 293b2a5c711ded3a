package optim

import (
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug/internal/philox"
	"github.com/stretchr/testify/require"
)

// TestNoise: any range of elements has the stream's numbers, and their distribution is normal.
func TestNoise(t *testing.T) {
	const n = 1 << 20
	s, words := philox.Stream{Seed: 1, Tensor: 2}, make([]uint32, n/2+2)
	z := make([]float32, n)
	Noise(z, s, 0, words)
	for _, first := range []int{1, 2, 1001} {
		part := make([]float32, 500)
		Noise(part, s, uint64(first), words)
		require.Equal(t, z[first:first+500], part)
	}
	sum, squares, fourth := 0.0, 0.0, 0.0
	for _, x := range z {
		x := float64(x)
		sum, squares, fourth = sum+x, squares+x*x, fourth+x*x*x*x
	}
	require.InDelta(t, 0, sum/n, 4/math.Sqrt(n))
	require.InDelta(t, 1, squares/n, 0.006)
	require.InDelta(t, 3, fourth/n, 0.1)
	slices.Sort(z)
	require.Less(t, float64(z[n-1]), 4.1)
	require.Equal(t, -z[0], z[n-1])
	require.Equal(t, MostNoise(), z[n-1])
	for i, x := range z {
		require.InDelta(t, (1+math.Erf(float64(x)/math.Sqrt2))/2, (float64(i)+0.5)/n, 0.004)
	}
	variance := 0.0
	for i, x := range exactLevels() {
		variance += 2 * x * x / levels
		near := float64(float32(x))
		other := float64(math.Nextafter32(float32(x), float32(math.Inf(int(math.Copysign(1, x-near))))))
		require.Greater(t, math.Abs(x-(near+other)/2), 1e-13, "quantile %d is between two float32", i)
	}
	require.InDelta(t, 1, variance, 1e-12)
}
