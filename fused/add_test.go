package fused

import (
	"math"
	"testing"

	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestAddIsRoundedOnce wants the bits of the sum, of NaNs any: those of float16 lose their payload
// on NVIDIA's GPUs.
func TestAddIsRoundedOnce(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, dt := range floatTypes {
		t.Run(dt.String(), func(t *testing.T) {
			kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
				for _, n := range []int{0, 1, 7, blockCols - 1, blockCols, itemLen + blockCols + 3} {
					rng := newRand(uint64(n))
					a, b := normals(rng, dt, n, 0, 1), normals(rng, dt, n, 0, 100)
					if n > 6 {
						copy(a, []float32{nan, inf, inf, 0x1p-24, -1, 0})
						copy(b, []float32{1, 1, -inf, 0x1p-24, 1, float32(math.Copysign(0, -1))})
						round(dt, a)
					}
					want := make([]float32, n)
					for i := range want {
						want[i] = a[i] + b[i]
					}
					round(dt, want)
					pa, pb := kerneltest.PutFloats(t, p, dt, a), kerneltest.PutFloats(t, p, dt, b)
					out := kerneltest.PutFloats(t, p, dt, fill(n, 42))
					require.NoError(t, Add(out.View, pa.View, pb.View))
					require.Equal(t, kerneltest.Bits(want), kerneltest.Bits(out.Get()), "out")
					require.NoError(t, Add(pb.View, pa.View, pb.View))
					require.Equal(t, kerneltest.Bits(want), kerneltest.Bits(pb.Get()), "out is b")
					pb = kerneltest.PutFloats(t, p, dt, b)
					require.NoError(t, Add(pa.View, pa.View, pb.View))
					require.Equal(t, kerneltest.Bits(want), kerneltest.Bits(pa.Get()), "out is a")
				}
			})
		})
	}
}
