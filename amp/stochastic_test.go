package amp

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
)

// stochastic rounds one element as the documentation says.
func stochastic(x float32, d Draw, i int) snug.BFloat16 {
	var word [1]uint32
	at := d.First + uint64(i)
	philox.Stream{Seed: d.Seed, Tensor: d.Tensor}.Words(word[:], at/2)
	draw := word[0] >> (16 * (at % 2)) & 0xffff
	down := snug.BFloat16(math.Float32bits(x) >> 16)
	distance := math.Float32bits(x) & 0xffff
	if x == x && draw+distance >= 1<<16 {
		return down + 1
	}
	if x != x {
		return snug.ToBFloat16(x)
	}
	return down
}

func TestCastStochastic(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Place) {
		for _, n := range []int{0, 1, 7, 130, 2049, castChunk + 5} {
			for _, draw := range []Draw{{}, {1, 2, 3}, {1 << 63, 5, 1<<32 - 9}} {
				for _, skip := range skips {
					stochasticAfter(t, p, n, skip, draw)
				}
			}
		}
	})
}

func stochasticAfter(t *testing.T, p kerneltest.Place, n, skip int, draw Draw) {
	x := append(append(make([]float32, skip), special...), randoms(1, n)...)[:skip+n]
	src, dst := kerneltest.Put(t, p, x), kerneltest.Put(t, p, make([]snug.BFloat16, skip+n))
	require.NoError(t, CastStochastic(after(t, dst.View, skip), after(t, src.View, skip), draw))
	for i, got := range dst.Get() {
		want := snug.BFloat16(0)
		if i >= skip {
			want = stochastic(x[i], draw, i-skip)
		}
		if want != got {
			t.Fatalf("%d elements after %d, %v: element %d, %g: want %v, got %v", n, skip, draw, i, x[i], want, got)
		}
	}
}

// TestCastStochasticExpectation bounds the mean of many roundings by four
// standard deviations.
func TestCastStochasticExpectation(t *testing.T) {
	const n, gap = 1 << 16, 0x1p-7
	src, dst := make([]float32, n), make([]snug.BFloat16, n)
	for _, x := range []float32{1 + gap/4, 1 + gap*0.9, -1 - gap/3} {
		for i := range src {
			src[i] = x
		}
		require.NoError(t, CastStochastic(dst, src, Draw{Seed: 9}))
		sum := 0.0
		for _, y := range dst {
			sum += float64(y.Float32())
		}
		require.InDelta(t, x, sum/n, 4*gap/2/math.Sqrt(n))
	}
}

func TestCastStochasticKeepsExactValues(t *testing.T) {
	src := make([]float32, 1<<16)
	for i := range src {
		src[i] = snug.BFloat16(i).Float32()
	}
	dst := make([]snug.BFloat16, len(src))
	require.NoError(t, CastStochastic(dst, src, Draw{Seed: 1}))
	for i, got := range dst {
		require.Equal(t, snug.ToBFloat16(src[i]), got, "code %#x", i)
	}
}

func stochasticProperty(t *rapid.T) {
	n := rapid.IntRange(0, 5000).Draw(t, "n")
	draw := Draw{rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "tensor"), rapid.Uint64Range(0, 1<<60).Draw(t, "first")}
	src := randoms(rapid.Uint64().Draw(t, "values"), n)
	whole, parts := make([]snug.BFloat16, n), make([]snug.BFloat16, n)
	require.NoError(t, CastStochastic(whole, src, draw))
	for lo := 0; lo < n; {
		hi := rapid.IntRange(lo+1, n).Draw(t, "end")
		part := draw
		part.First += uint64(lo)
		require.NoError(t, CastStochastic(parts[lo:hi], src[lo:hi], part))
		lo = hi
	}
	require.Equal(t, whole, parts, "pieces give what the whole gives")
}

func TestStochasticProperty(t *testing.T) { rapid.Check(t, stochasticProperty) }
func FuzzCastStochastic(f *testing.F)     { f.Fuzz(rapid.MakeFuzz(stochasticProperty)) }

func TestCastStochasticErrors(t *testing.T) {
	f32, bf16 := make([]float32, 8), make([]snug.BFloat16, 8)
	bf16[0] = 5
	away := kerneltest.PutFloats(t, kerneltest.Places(t)[2], snug.F32, make([]float32, 8)).View
	require.ErrorIs(t, CastStochastic(f32, f32, Draw{}), snug.ErrDType)
	require.ErrorIs(t, CastStochastic(bf16, bf16, Draw{}), snug.ErrDType)
	require.ErrorIs(t, CastStochastic(bf16, f32[:7], Draw{}), snug.ErrShape)
	require.ErrorIs(t, CastStochastic(bf16, away, Draw{}), snug.ErrDevice)
	sameMemory := unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(&f32[0])), 8)
	require.ErrorIs(t, CastStochastic(sameMemory, f32, Draw{}), snug.ErrConfig)
	require.Equal(t, snug.BFloat16(5), bf16[0])
}

func TestCastStochasticAllocatesNothing(t *testing.T) {
	src, dst := randoms(1, castChunk+77), make([]snug.BFloat16, castChunk+77)
	kerneltest.NoAllocs(t, func() { _ = CastStochastic(dst, src, Draw{First: 3}) })
}

// BenchmarkCast has vectors far beyond the last cache.
func BenchmarkCast(b *testing.B) {
	const n, parts = 1 << 23, 8
	f32 := snug.ViewOf(randoms(1, n*parts))
	f16, bf16 := snug.ViewOf(make([]snug.Float16, n*parts)), snug.ViewOf(make([]snug.BFloat16, n*parts))
	for _, c := range []struct {
		name     string
		dst, src snug.View
		do       func(dst, src snug.View) error
	}{
		{"f32-f16", f16, f32, cast}, {"f32-bf16", bf16, f32, cast},
		{"f16-f32", f32, f16, cast}, {"bf16-f32", f32, bf16, cast},
		{"f16-bf16", bf16, f16, cast}, {"bf16-f16", f16, bf16, cast},
		{"stochastic", bf16, f32, func(dst, src snug.View) error { return castStochastic(dst, src, Draw{}) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			kerneltest.OfCopy(b, parts, n*(c.dst.DType().Size()+c.src.DType().Size()), func(part int) {
				dst, _ := c.dst.Slice(part*n, (part+1)*n)
				src, _ := c.src.Slice(part*n, (part+1)*n)
				_ = c.do(dst, src)
			})
		})
	}
}
