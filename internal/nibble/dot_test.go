package nibble

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestDot compares every tier, number of rows and of blocks with sums in float64 of what
// the decoder writes.
func TestDot(t *testing.T) {
	for _, f := range formats {
		for _, size := range [][2]int{{0, 32}, {1, 32}, {1, 64}, {3, 32}, {7, 64}, {2, 1024}, {64, 64}} {
			blocks, block := size[0], size[1]
			n := blocks * block
			w, packed, absmax := make([]float32, n), make([]uint8, n/2+guards), make([]float32, blocks)
			encode(packed, absmax, kerneltest.Normal(1, n), block, f)
			decodeF32(w, packed, absmax, block, f)
			for rows := 1; rows <= DotRows; rows++ {
				stride := n + 3
				x := kerneltest.Normal(2, rows*stride)[1:] // not aligned
				for tier, dot := range Dots.All() {
					y := slices.Repeat([]float32{77}, rows+guards)
					(*dot)(y[:rows], x, stride, packed, absmax, block, f)
					for r := range rows {
						want, bound := 0.0, 0.0
						for i, v := range w {
							p := float64(v) * float64(x[r*stride+i])
							want += p
							bound += math.Abs(p)
						}
						require.InDelta(t, want, float64(y[r]), float64(n/8+8)*0x1p-24*bound, "%v: %d rows of %d", tier, rows, n)
					}
					for _, v := range y[rows:] {
						require.EqualValues(t, 77, v)
					}
				}
			}
		}
	}
}

// TestDotNonFinite: NaNs and infinities of x come through, in their rows only.
func TestDotNonFinite(t *testing.T) {
	const n, block = 128, 64
	packed, absmax, f := make([]uint8, n/2), make([]float32, n/block), formats[0]
	encode(packed, absmax, slices.Repeat([]float32{1}, n), block, f)
	for tier, dot := range Dots.All() {
		x, y := make([]float32, 3*n), make([]float32, 3)
		x[5], x[n+70] = float32(math.NaN()), float32(math.Inf(-1))
		(*dot)(y, x, n, packed, absmax, block, f)
		require.True(t, y[0] != y[0], "%v", tier)
		require.Equal(t, float32(math.Inf(-1)), y[1], "%v", tier)
		require.Zero(t, y[2], "%v", tier)
	}
}

func TestDotNoAllocations(t *testing.T) {
	x, packed, absmax, y := kerneltest.Normal(1, 1024), make([]uint8, 128), make([]float32, 4), make([]float32, 4)
	kerneltest.NoAllocs(t, func() { (*Dots.Best())(y, x, 256, packed, absmax, 64, formats[0]) })
}

// BenchmarkDot has a row of 4096 codes that stays in the caches.
func BenchmarkDot(b *testing.B) {
	const n, block = 4096, 64
	packed, absmax := make([]uint8, n/2), make([]float32, n/block)
	encode(packed, absmax, kerneltest.Normal(1, n), block, formats[0])
	for _, rows := range []int{1, 2, 4, 8} {
		x, y := kerneltest.Normal(2, rows*n), make([]float32, rows)
		for tier, dot := range Dots.All() {
			b.Run(fmt.Sprintf("%d/%v", rows, tier), func(b *testing.B) {
				for b.Loop() {
					(*dot)(y, x, n, packed, absmax, block, formats[0])
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/code")
			})
		}
	}
}
