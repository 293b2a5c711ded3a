package amp

import (
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
)

// randomHalf returns the random number of an element.
func randomHalf(d Draw, i int) uint32 {
	var word [1]uint32
	at := d.First + uint64(i)
	philox.Stream{Seed: d.Seed, Tensor: d.Tensor}.Words(word[:], at/2)
	return word[0] >> (16 * (at % 2)) & 0xffff
}

// stochastic rounds one element as the documentation says.
func stochastic(dt snug.DType, x float32, d Draw, i int) float32 {
	a := float32(math.Abs(float64(x)))
	down := round(dt, a)
	if x != x || a-a != 0 {
		return round(dt, x)
	}
	if down > a {
		down = before(dt, down)
	}
	up := after1(dt, down)
	distance := math.Floor(float64(a-down) / (float64(up) - float64(down)) * 65536)
	if up-up != 0 { // the largest number: the gap is that below it
		distance = math.Floor(float64(a-down) / (float64(down) - float64(before(dt, down))) * 65536)
	}
	if dt == snug.F16 && a >= 65536 || float64(randomHalf(d, i))+distance >= 65536 {
		down = up
	}
	return float32(math.Copysign(float64(down), float64(x)))
}

// after1 and before return the neighbours of a number that is not negative.
func after1(dt snug.DType, x float32) float32 {
	if dt == snug.F16 {
		return (float16.Fromfloat32(x) + 1).Float32()
	}
	return (snug.ToBFloat16(x) + 1).Float32()
}

func before(dt snug.DType, x float32) float32 {
	if dt == snug.F16 {
		return (float16.Fromfloat32(x) - 1).Float32()
	}
	return (snug.ToBFloat16(x) - 1).Float32()
}

// castAtRandom is CastWith for stochastic rounding.
func castAtRandom[D, S snug.Vector](dst D, src S, draw Draw) error {
	return CastWith(dst, src, CastOptions{Stochastic: true, Draw: draw})
}

func TestCastStochastic(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, n := range []int{0, 1, 7, 130, 2049, castChunk + 5, castFew + 5} {
			draws := []Draw{{1 << 63, 5, 1<<32 - 9}, {}, {1, 2, 3}}
			if !kerneltest.Full() {
				draws = draws[:1]
			}
			for _, draw := range draws {
				for _, skip := range skips {
					for _, from := range floats {
						for _, to := range floats[1:] {
							if n < castChunk || from == snug.F32 {
								stochasticAfter(t, p, from, to, n, skip, draw)
							}
						}
					}
				}
			}
		}
	})
}

func stochasticAfter(t *testing.T, p kerneltest.Backend, from, to snug.DType, n, skip int, draw Draw) {
	x := append(append(make([]float32, skip), special...), kerneltest.Uniform(1, n)...)[:skip+n]
	for i := len(special) + skip; i < len(x); i += 3 {
		x[i] *= 0x1p-18 // subnormal in float16
	}
	x = roundAll(from, x)
	for _, saturate := range []bool{false, true} {
		src, dst := kerneltest.PutFloats(t, p, from, x), kerneltest.PutFloats(t, p, to, make([]float32, skip+n))
		o := CastOptions{Stochastic: true, Draw: draw, Saturate: saturate}
		require.NoError(t, CastWith(kerneltest.After(t, dst.View, skip), kerneltest.After(t, src.View, skip), o))
		want := make([]float32, len(x))
		for i := skip; i < len(x); i++ {
			v := x[i]
			if most := largest(to); saturate && v == v {
				v = max(-most, min(most, v))
			}
			want[i] = stochastic(to, v, draw, i-skip)
		}
		requireSame(t, want, dst.Get(), from, to, n, skip, draw, saturate)
	}
}

// TestCastStochasticExpectation bounds the mean of many roundings by four
// standard deviations.
func TestCastStochasticExpectation(t *testing.T) {
	const n = 1 << 18
	src, brain, half := make([]float32, n), make([]snug.BFloat16, n), make([]snug.Float16, n)
	for _, test := range []struct{ x, gap float64 }{
		{1 + 0x1p-7/4, 0x1p-7}, {1 + 0x1p-7*0.9, 0x1p-7}, {-1 - 0x1p-7/3, 0x1p-7}, {3e-30, 0x1p-105},
		{1 + 0x1p-10/4, 0x1p-10}, {-5 - 0x1p-8*0.7, 0x1p-8}, {0x1p-20 * 1.3, 0x1p-24}, {0x1p-24 * 0.3, 0x1p-24}, {-0x1p-24 * 1e-4, 0x1p-24},
	} {
		for i := range src {
			src[i] = float32(test.x)
		}
		sum := 0.0
		if test.gap == 0x1p-7 || test.x == 3e-30 {
			require.NoError(t, castAtRandom(brain, src, Draw{Seed: 9}))
			for _, y := range brain {
				sum += float64(y.Float32())
			}
		} else {
			require.NoError(t, castAtRandom(half, src, Draw{Seed: 9}))
			for _, y := range half {
				sum += float64(y.Float32())
			}
		}
		require.InDelta(t, float64(float32(test.x)), sum/n, 5*test.gap/2/math.Sqrt(n)+0x1p-16*test.gap, "%v", test.x)
	}
}

func TestCastStochasticKeepsExactValues(t *testing.T) {
	src := make([]float32, 1<<16)
	for i := range src {
		src[i] = snug.BFloat16(i).Float32()
	}
	dst := make([]snug.BFloat16, len(src))
	require.NoError(t, castAtRandom(dst, src, Draw{Seed: 1}))
	for i, got := range dst {
		require.Equal(t, snug.ToBFloat16(src[i]), got, "code %#x", i)
	}
}

func stochasticProperty(t *rapid.T) {
	n := rapid.IntRange(0, 5000).Draw(t, "n")
	draw := Draw{rapid.Uint64().Draw(t, "seed"), rapid.Uint64().Draw(t, "tensor"), rapid.Uint64Range(0, 1<<60).Draw(t, "first")}
	src := kerneltest.Uniform(rapid.Uint64().Draw(t, "values"), n)
	whole, parts := make([]snug.BFloat16, n), make([]snug.BFloat16, n)
	require.NoError(t, castAtRandom(whole, src, draw))
	for lo := 0; lo < n; {
		hi := rapid.IntRange(lo+1, n).Draw(t, "end")
		part := draw
		part.First += uint64(lo)
		require.NoError(t, castAtRandom(parts[lo:hi], src[lo:hi], part))
		lo = hi
	}
	require.Equal(t, whole, parts, "pieces give what the whole gives")
}

//check:in tiers
func TestStochasticProperty(t *testing.T) { rapid.Check(t, stochasticProperty) }
func FuzzCastStochastic(f *testing.F)     { f.Fuzz(rapid.MakeFuzz(stochasticProperty)) }

func TestCastStochasticErrors(t *testing.T) {
	f32, bf16 := make([]float32, 8), make([]snug.BFloat16, 8)
	bf16[0] = 5
	away := kerneltest.PutFloats(t, kerneltest.Backends(t)[2], snug.F32, make([]float32, 8)).View
	require.ErrorIs(t, castAtRandom(f32, f32, Draw{}), snug.ErrDType)
	require.ErrorIs(t, castAtRandom(bf16, f32[:7], Draw{}), snug.ErrShape)
	require.ErrorIs(t, castAtRandom(bf16, away, Draw{}), snug.ErrDevice)
	sameMemory := unsafe.Slice((*snug.BFloat16)(unsafe.Pointer(&f32[0])), 8)
	require.ErrorIs(t, castAtRandom(sameMemory, f32, Draw{}), snug.ErrConfig)
	require.Equal(t, snug.BFloat16(5), bf16[0])
}

func TestCastStochasticAllocatesNothing(t *testing.T) {
	src, dst := kerneltest.Uniform(1, castChunk+77), make([]snug.BFloat16, castChunk+77)
	kerneltest.NoAllocs(t, func() { _ = castAtRandom(dst, src, Draw{First: 3}) })
}

// BenchmarkCast has vectors far beyond the last cache.
func BenchmarkCast(b *testing.B) {
	const n, parts = 1 << 23, 8
	f32 := snug.ViewOf(kerneltest.Uniform(1, n*parts))
	f16, bf16 := snug.ViewOf(make([]snug.Float16, n*parts)), snug.ViewOf(make([]snug.BFloat16, n*parts))
	for _, c := range []struct {
		name     string
		dst, src snug.View
		do       func(dst, src snug.View) error
	}{
		{"f32-f16", f16, f32, cast}, {"f32-bf16", bf16, f32, cast},
		{"f16-f32", f32, f16, cast}, {"bf16-f32", f32, bf16, cast},
		{"f16-bf16", bf16, f16, cast}, {"bf16-f16", f16, bf16, cast},
		{"stochastic f16", f16, f32, func(dst, src snug.View) error { return castWith(dst, src, CastOptions{Stochastic: true}) }},
		{"saturate bf16", bf16, f32, func(dst, src snug.View) error { return castWith(dst, src, CastOptions{Saturate: true}) }},
		{"saturate f16", f16, f32, func(dst, src snug.View) error { return castWith(dst, src, CastOptions{Saturate: true}) }},
		{"stochastic", bf16, f32, func(dst, src snug.View) error { return castWith(dst, src, CastOptions{Stochastic: true}) }},
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
