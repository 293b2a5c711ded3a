package nibble

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// ordered returns rows of x, of n elements each stride apart, as a Product takes them.
func ordered(x []float32, stride, n int, evensFirst bool) []float32 {
	x = slices.Clone(x)
	for at := 0; evensFirst && at+n <= len(x); at += stride {
		EvensFirst(x[at : at+n])
	}
	return x
}

// TestDot compares every tier, number of rows, of lines and of blocks with sums in float64 of what
// the decoder writes.
func TestDot(t *testing.T) {
	for _, f := range formats {
		for _, size := range [][3]int{{1, 0, 32}, {3, 1, 32}, {2, 1, 64}, {1, 3, 32}, {5, 7, 64}, {1, 2, 1024}, {2, 64, 64}} {
			lines, blocks, block := size[0], size[1], size[2]
			n, total := blocks*block, (blocks+1)*block*size[0] // a line has a block more than is multiplied
			w, packed, absmax := make([]float32, total), make([]uint8, total/2+guards), make([]float32, lines*(blocks+1))
			encode(packed, absmax, kerneltest.Normal(1, total), block, f)
			decodeF32(w, packed, absmax, block, f)
			l := Lines{N: lines, Blocks: blocks, Block: block, Packed: packed, Pitch: (n + block) / 2, Absmax: absmax, AbsmaxPitch: blocks + 1}
			for rows := 1; rows <= DotRows; rows++ {
				stride := n + 3
				x, old := kerneltest.Normal(2, rows*stride)[1:], kerneltest.Normal(3, rows*lines) // not aligned
				for tier, dot := range Dots.All() {
					y := append(slices.Clone(old), slices.Repeat([]float32{77}, guards)...)
					dot.Dot(y, ordered(x, stride, n, dot.EvensFirst), rows, stride, l, f)
					for i, v := range y[:rows*lines] {
						r, j := i/lines, i%lines
						want, bound := float64(old[i]), math.Abs(float64(old[i]))
						for k, v := range w[j*(n+block):][:n] {
							p := float64(v) * float64(x[r*stride+k])
							want += p
							bound += math.Abs(p)
						}
						require.InDelta(t, want, float64(v), float64(n/8+8)*0x1p-24*bound, "%v: %d rows and %d lines of %d", tier, rows, lines, n)
					}
					for _, v := range y[rows*lines:] {
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
	l, f := oneLine(slices.Repeat([]float32{1}, n), block), formats[0]
	for tier, dot := range Dots.All() {
		x, y := make([]float32, 3*n), make([]float32, 3)
		x[5], x[n+70] = float32(math.NaN()), float32(math.Inf(-1))
		dot.Dot(y, ordered(x, n, n, dot.EvensFirst), 3, n, l, f)
		require.True(t, y[0] != y[0], "%v", tier)
		require.Equal(t, float32(math.Inf(-1)), y[1], "%v", tier)
		require.Zero(t, y[2], "%v", tier)
	}
}

// oneLine encodes a line.
func oneLine(w []float32, block int) Lines {
	l := Lines{N: 1, Blocks: len(w) / block, Block: block, Packed: make([]uint8, len(w)/2), Absmax: make([]float32, len(w)/block)}
	encode(l.Packed, l.Absmax, w, block, formats[0])
	return l
}

func TestDotNoAllocations(t *testing.T) {
	x, l, y := kerneltest.Normal(1, 1024), oneLine(kerneltest.Normal(2, 256), 64), make([]float32, 4)
	kerneltest.NoAllocs(t, func() { Dots.Best().Dot(y, x, 4, 256, l, formats[0]) })
}

// BenchmarkDot has a line of 4096 codes that stays in the caches.
func BenchmarkDot(b *testing.B) {
	const n = 4096
	l := oneLine(kerneltest.Normal(1, n), 64)
	for _, rows := range []int{1, 2, 4, 8} {
		x, y := kerneltest.Normal(2, rows*n), make([]float32, rows)
		for tier, dot := range Dots.All() {
			b.Run(fmt.Sprintf("%d/%v", rows, tier), func(b *testing.B) {
				for b.Loop() {
					dot.Dot(y, x, rows, n, l, formats[0])
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/code")
			})
		}
	}
}
