package attention

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestBiasOfLargeNumbers adds the same large negative number to all scores, or to all but one: the bound that the doc of Bias
// names, on every backend.
func TestBiasOfLargeNumbers(t *testing.T) {
	const n, d = 24, 8
	for _, backend := range kerneltest.Backends(t)[1:] { // arrays
		for _, test := range []struct {
			bias  float32
			hides bool
		}{{-1e9, false}, {-2.3e38, false}, {-2.4e38, true}, {-math.MaxFloat32, true}, {float32(math.Inf(-1)), true}} {
			for _, one := range []bool{false, true} {
				v, bias := kerneltest.Normal(3, n*d), make([]float32, n)
				for i := range bias {
					bias[i] = test.bias
				}
				if one {
					bias[5] = 0
				}
				on := func(x []float32) snug.Array[float32] {
					a, err := snug.Make[float32](backend.Dev, len(x))
					require.NoError(t, err)
					t.Cleanup(func() { require.NoError(t, a.Close()) })
					require.NoError(t, a.CopyIn(x))
					return a
				}
				out, lse := on(make([]float32, n*d)), on(make([]float32, n))
				c := Options{Batch: 1, Heads: 1, SeqQ: n, Dim: d, Bias: Bias{X: snug.ViewOf(on(bias)), Dims: [4]int{1, 1, 1, n}}}
				require.NoError(t, Forward(out, lse, on(kerneltest.Normal(1, n*d)), on(kerneltest.Normal(2, n*d)), on(v), c))
				got, logs := make([]float32, n*d), make([]float32, n)
				require.NoError(t, out.CopyOut(got))
				require.NoError(t, lse.CopyOut(logs))
				for col := range d {
					want := 0.0
					switch {
					case one:
						want = float64(v[5*d+col])
					case !test.hides:
						for key := range n {
							want += float64(v[key*d+col]) / n
						}
					}
					require.InDelta(t, want, float64(got[col]), 1e-5, "%v %v", test, one)
				}
				require.Equal(t, test.hides && !one, math.IsInf(float64(logs[0]), -1), "%v %v", test, one)
			}
		}
	}
}
