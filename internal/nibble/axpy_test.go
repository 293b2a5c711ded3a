package nibble

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// vectors are codes of vectors that begin stride bytes apart, and their values.
type vectors struct {
	packed []uint8
	stride int
	absmax []float32
	values []float32
}

func newVectors(count, n, block, gap int, f *Format) vectors {
	v := vectors{stride: n/2 + gap, values: make([]float32, count*n)}
	blocks := n / block
	v.absmax = make([]float32, count*blocks)
	for j := range count {
		packed, absmax := make([]uint8, v.stride), v.absmax[j*blocks:(j+1)*blocks]
		encode(packed[:n/2], absmax, kerneltest.Normal(uint64(j), n), block, f)
		decodeF32(v.values[j*n:(j+1)*n], packed, absmax, block, f)
		v.packed = append(v.packed, packed...)
	}
	v.packed = v.packed[:len(v.packed)-gap]
	return v
}

// TestAxpy compares every tier, number of rows, of vectors and of blocks with sums in float64
// of what the decoder writes.
func TestAxpy(t *testing.T) {
	for _, f := range formats {
		for _, size := range []struct{ count, blocks, block int }{
			{1, 0, 32}, {1, 1, 32}, {2, 1, 64}, {3, 3, 32}, {4, 7, 64}, {5, 2, 1024}, {11, 1, 96}, {8, 16, 64},
		} {
			count, block := size.count, size.block
			n := size.blocks * block
			w := newVectors(count, n, block, 7, f)
			for _, rows := range []int{1, 2, 4, 8} {
				a, start := kerneltest.Normal(2, count*rows), kerneltest.Normal(3, 1+rows*n+guards)
				before := make([]float32, n)
				for tier, axpy := range Axpys.All() {
					whole, got := slices.Clone(start), make([]float32, n)
					y := whole[1 : 1+rows*n] // not aligned
					(*axpy)(y, a, rows, w.packed, w.stride, w.absmax, block, f)
					for r := range rows {
						Gather(before, start[1:], r, rows)
						Gather(got, y, r, rows)
						for i, v := range got {
							want, bound := float64(before[i]), math.Abs(float64(before[i]))
							for j := range count {
								p := float64(a[j*rows+r]) * float64(w.values[j*n+i])
								want += p
								bound += math.Abs(p)
							}
							require.InDelta(t, want, float64(v), float64(count+1)*(0x1p-24+0x1p-45)*bound,
								"%v: %d vectors, %d rows of %d: element %d of row %d", tier, count, rows, n, i, r)
						}
					}
					require.Equal(t, start[0], whole[0])
					require.Equal(t, start[1+rows*n:], whole[1+rows*n:], "%v", tier)
				}
			}
		}
	}
}

// TestAxpyOrder: vectors are added one by one, however many a call has.
func TestAxpyOrder(t *testing.T) {
	const count, n, block, rows = 13, 128, 64, 4
	w, a := newVectors(count, n, block, 0, formats[0]), kerneltest.Normal(2, count*rows)
	for tier, axpy := range Axpys.All() {
		if tier == cpu.Go {
			continue
		}
		y, want := make([]float32, rows*n), make([]float32, rows*n)
		(*axpy)(want, a, rows, w.packed, w.stride, w.absmax, block, formats[0])
		for j := 0; j < count; j += 4 {
			k := min(j+4, count)
			(*axpy)(y, a[j*rows:k*rows], rows, w.packed[j*w.stride:], w.stride, w.absmax[j*n/block:], block, formats[0])
		}
		require.Equal(t, want, y, "%v", tier)
	}
}

// TestAxpyNonFinite: NaNs and infinities of a come through, in their rows only.
func TestAxpyNonFinite(t *testing.T) {
	const count, n, block, rows = 5, 128, 64, 4
	w, f := newVectors(count, n, block, 0, formats[0]), formats[0]
	encode(w.packed, w.absmax, slices.Repeat([]float32{1}, count*n), block, f)
	for tier, axpy := range Axpys.All() {
		for j := range count {
			y, a, x := make([]float32, rows*n), make([]float32, count*rows), make([]float32, n)
			a[j*rows], a[j*rows+1] = float32(math.NaN()), float32(math.Inf(-1))
			(*axpy)(y, a, rows, w.packed, w.stride, w.absmax, block, f)
			for r, ok := range []func(v float32) bool{
				func(v float32) bool { return v != v },
				func(v float32) bool { return math.IsInf(float64(v), -1) },
				func(v float32) bool { return v == 0 },
				func(v float32) bool { return v == 0 },
			} {
				Gather(x, y, r, rows)
				for _, v := range x {
					require.True(t, ok(v), "%v: vector %d, row %d: %v", tier, j, r, v)
				}
			}
		}
	}
}

func TestGather(t *testing.T) {
	const rows, n = 2, 2 * Step
	y, x := make([]float32, rows*n), make([]float32, n)
	for i := range y {
		y[i] = float32(i)
	}
	Gather(x, y, 1, rows)
	require.Equal(t, []float32{32, 48, 33, 49}, x[:4])
	require.Equal(t, []float32{47, 63, 96, 112, 97}, x[30:35])
}

func TestAxpyNoAllocations(t *testing.T) {
	w, a, y := newVectors(5, 128, 64, 0, formats[0]), make([]float32, 10), make([]float32, 256)
	kerneltest.NoAllocs(t, func() { (*Axpys.Best())(y, a, 2, w.packed, w.stride, w.absmax, 64, formats[0]) })
}

// BenchmarkAxpy has vectors of 1024 codes that stay in the caches.
func BenchmarkAxpy(b *testing.B) {
	const count, n, block = 4, 1024, 64
	w := newVectors(count, n, block, 0, formats[0])
	for _, rows := range []int{1, 2, 4, 8} {
		y, a := make([]float32, rows*n), kerneltest.Normal(2, count*rows)
		for tier, axpy := range Axpys.All() {
			b.Run(fmt.Sprintf("%d/%v", rows, tier), func(b *testing.B) {
				for b.Loop() {
					(*axpy)(y, a, rows, w.packed, w.stride, w.absmax, block, formats[0])
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(count*n), "ns/code")
			})
		}
	}
}
