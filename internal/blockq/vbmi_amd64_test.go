//go:build !noasm && gc

package blockq

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/cpu"
)

// TestGroups encodes and decodes blocks of random scales, most with values next to limits, with and without
// negative elements.
func TestGroups(t *testing.T) {
	if !cpu.AVX512VBMI.Has() {
		return
	}
	for name, e := range encoders() {
		for seed := range uint64(400) {
			n := Group * (1 + int(seed%7))
			x := randoms(n, seed)
			absmax := absMax(x)
			for i := 0; i < n; i += 5 {
				near := e.limit[uint(i)*97%255] * absmax
				x[i] = math.Float32frombits(math.Float32bits(near) + uint32(i%3) - 1)
			}
			for i, v := range x {
				x[i] = max(-absmax, min(v, absmax))
			}
			for _, negative := range []bool{true, false} {
				if !negative {
					for i, v := range x {
						x[i] = float32(math.Abs(float64(v)))
					}
				}
				want, got := make([]uint8, n), slices.Repeat([]uint8{77}, n+1)
				encode(want, x, absmax, e)
				e.EncodeGroups(got[:n], x, absmax, negative)
				require.Equal(t, want, got[:n], "%s: %d", name, seed)
				require.EqualValues(t, 77, got[n])
			}
			codes, values, decoded := make([]uint8, n), make([]float32, n), make([]float32, n)
			encode(codes, x, absmax, e)
			decodeBlock(values, codes, e.Values(), absmax)
			e.DecodeGroups(decoded, codes, absmax)
			require.Equal(t, values, decoded)
		}
	}
}
