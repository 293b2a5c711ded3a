package qlora

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// quantizeReference is the definition: of the sorted values, the one with as many
// before it as there are float32 midpoints below x/absmax.
func quantizeReference(x []float32, t Type, block int) (packed []uint8, absmax []float32) {
	values := t.Values()
	order := []uint8{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	if t == FP4 {
		order = []uint8{11, 10, 13, 12, 15, 14, 9, 0, 8, 1, 6, 7, 4, 5, 2, 3}
	}
	for lo := 0; lo < len(x); lo += block {
		b := x[lo:min(lo+block, len(x))]
		a := float32(0)
		for _, v := range b {
			a = max(a, float32(math.Abs(float64(v))))
		}
		absmax = append(absmax, a)
		for i := range len(b) + len(b)%2 {
			q, rank := float32(0), 0
			if i < len(b) && a > 0 {
				q = b[i] / a
			}
			for rank < 15 && q > (values[order[rank]]+values[order[rank+1]])/2 {
				rank++
			}
			if i%2 == 0 {
				packed = append(packed, order[rank]<<4)
			} else {
				packed[len(packed)-1] |= order[rank]
			}
		}
	}
	return packed, absmax
}

func codeOf(packed []uint8, i int) uint8 { return packed[i/2] >> (4 - i%2*4) & 15 }

// skips are how many elements of a buffer come before the vector under test:
// with the guard words of kerneltest, it starts at an odd element, or at a
// multiple of 16 bytes.
var skips = []int{0, 9}

// after returns v without its first elements.
func after(t require.TestingT, v snug.View, skip int) snug.View {
	tail, err := v.Slice(skip, v.Len())
	require.NoError(t, err)
	return tail
}

//check:in tiers arm64
func TestQuantizeAgainstDefinition(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, dt := range floatTypes {
			for _, format := range formats {
				for _, block := range []int{32, 64, 256, 1024, 4096} {
					for _, n := range []int{0, 1, block - 1, block, block + 1, 2*block + 5, 5*block + 62} {
						if n > 10_000 {
							continue
						}
						for _, skip := range skips {
							t.Run(fmt.Sprintf("%v/%v/%d/%d/%d", dt, format, block, n, skip), func(t *testing.T) {
								roundTrip(t, backend, dt, format, block, kerneltest.Normal(uint64(n), n), skip)
							})
						}
					}
				}
			}
		}
	})
}

// roundTrip quantizes x rounded to dt and back.
func roundTrip(t *testing.T, backend kerneltest.Backend, dt snug.DType, format Type, block int, x []float32, skip int) {
	n, none := len(x), make([]float32, skip)
	src := kerneltest.PutFloats(t, backend, dt, append(none, x...))
	packed := kerneltest.Put(t, backend, make([]uint8, skip+PackedBytes(n)))
	absmax := kerneltest.Put(t, backend, make([]float32, Blocks(n, block)))
	dst := kerneltest.PutFloats(t, backend, dt, make([]float32, skip+n))
	codes := after(t, packed.View, skip)
	require.NoError(t, Quantize(codes, absmax.View, after(t, src.View, skip), format, block))
	require.NoError(t, Dequantize(after(t, dst.View, skip), codes, absmax.View, format, block))

	wantPacked, wantAbsmax := quantizeReference(src.Get()[skip:], format, block)
	require.True(t, slices.Equal(append(make([]uint8, skip), wantPacked...), packed.Get()))
	sameBits(t, wantAbsmax, absmax.Get())
	want, values := make([]float32, n), format.Values()
	for i := range want {
		want[i] = values[codeOf(wantPacked, i)] * wantAbsmax[i/block]
	}
	sameBits(t, append(none, kerneltest.PutFloats(t, kerneltest.Backend{}, dt, want).Get()...), dst.Get())
}

// TestThresholds quantizes values next to every midpoint, at which the code may
// change only when the quotient, which is the value here, is above.
func TestThresholds(t *testing.T) {
	for _, format := range formats {
		values := format.Values()
		slices.Sort(values[:])
		x := []float32{1, -1, 0, float32(math.Copysign(0, -1)), 1e-45, -1e-45}
		for c := range 15 {
			mid := (values[c] + values[c+1]) / 2
			x = append(x, values[c], mid, math.Nextafter32(mid, 2), math.Nextafter32(mid, -2))
		}
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) { roundTrip(t, backend, snug.F32, format, 128, x, 0) })
	}
}

// TestExtremeBlocks has blocks of all magnitudes, with quotients that round to
// 0 and to subnormals.
func TestExtremeBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	x := make([]float32, 40*32+7)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
		switch i / 32 % 5 {
		case 1:
			x[i] = float32(math.Copysign(0, float64(x[i])))
		case 2:
			x[i] = math.Float32frombits(rng.Uint32() & 0x807fffff) // subnormal
		case 3:
			x[i] = math.Float32frombits(rng.Uint32()%0x7f800000 | rng.Uint32()&(1<<31)) // finite
		case 4:
			x[i] *= 1e37
		}
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, format := range formats {
			for _, skip := range skips {
				roundTrip(t, backend, snug.F32, format, 32, x, skip)
			}
		}
	})
}

// TestSliceForms calls the functions as programs do, with typed operands.
func TestSliceForms(t *testing.T) {
	x := kerneltest.Normal(1, 301)
	half16, bf16 := make([]snug.Float16, 301), make([]snug.BFloat16, 301)
	half.Store(snug.SliceView(half16), 0, x)
	packed, absmax := make([]uint8, 151), make([]float32, 5)
	require.NoError(t, Quantize(packed, absmax, x, NF4, 64))
	require.NoError(t, Dequantize(x, packed, absmax, NF4, 64))
	require.NoError(t, Quantize(snug.FromSlice(packed), snug.FromSlice(absmax), half16, NF4, 64))
	require.NoError(t, Dequantize(bf16, snug.FromSlice(packed), absmax, NF4, 64))
	require.InDelta(t, x[0], bf16[0].Float32(), 0.05)
}

//check:in ordered
//check:not checked
func TestNonFinite(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		for _, dt := range floatTypes {
			for _, at := range []int{0, 299, 5000, 9999} {
				kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
					x := kerneltest.Normal(3, 10_000)
					x[at], x[9999] = bad, bad
					src := kerneltest.PutFloats(t, backend, dt, x)
					packed := kerneltest.Put(t, backend, make([]uint8, 5000))
					absmax := kerneltest.Put(t, backend, make([]float32, Blocks(len(x), 64)))
					err := Quantize(packed.View, absmax.View, src.View, FP4, 64)
					if onCPU(backend) {
						require.ErrorIs(t, err, snug.ErrNonFinite)
						require.ErrorContains(t, err, fmt.Sprintf("src[%d]", at))
						require.Equal(t, make([]uint8, 5000), packed.Get())
						require.Equal(t, make([]float32, absmax.Len()), absmax.Get())
						return
					}
					require.NoError(t, err)
					require.NoError(t, Dequantize(src.View, packed.View, absmax.View, FP4, 64))
					for i, v := range src.Get() {
						require.Equal(t, i/64 == at/64 || i/64 == 9999/64, v != v, "only the block is NaN")
					}
					require.Zero(t, packed.Get()[at/64*32], "codes of 0")
				})
			}
		}
	}
}

// TestErrorBounds holds the mean errors of normal data to those of bitsandbytes'
// tests.
func TestErrorBounds(t *testing.T) {
	const n = 1 << 20
	x, back := kerneltest.Normal(7, n), make([]float32, n)
	mean := func() float64 {
		sum := 0.0
		for i := range x {
			sum += math.Abs(float64(x[i]) - float64(back[i]))
		}
		return sum / n
	}
	for _, c := range []struct {
		t             Type
		bound, double float64
	}{{NF4, 0.0733, 0.11}, {FP4, 0.0973, 0.11}} {
		packed, absmax := make([]uint8, n/2), make([]float32, n/64)
		require.NoError(t, Quantize(packed, absmax, x, c.t, 64))
		require.NoError(t, Dequantize(back, packed, absmax, c.t, 64))
		plain := mean()
		w, err := NewWeight(x, []int{1024, 1024}, Options{Type: c.t})
		require.NoError(t, err)
		require.NoError(t, w.Dequantize(snug.ViewOf(back)))
		t.Logf("%v: mean absolute error %.5f, with double quantization %.5f", c.t, plain, mean())
		require.Less(t, plain, c.bound)
		require.Less(t, mean(), c.double)
	}
}

func TestErrors(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	there, err := snug.Make[float32](dev, 300)
	require.NoError(t, err)
	x, packed := make([]float32, 300), snug.SliceView(make([]uint8, 150))
	for _, c := range []struct {
		name           string
		x, packed, abs snug.View
		t              Type
		block          int
		want           error
	}{
		{"no format", snug.ViewOf(x), packed, snug.ViewOf(x[:5]), 0, 64, snug.ErrConfig},
		{"unknown format", snug.ViewOf(x), packed, snug.ViewOf(x[:5]), 3, 64, snug.ErrConfig},
		{"small block", snug.ViewOf(x), packed, snug.ViewOf(x[:19]), NF4, 16, snug.ErrConfig},
		{"large block", snug.ViewOf(x), packed, snug.ViewOf(x[:1]), NF4, 8192, snug.ErrConfig},
		{"odd block", snug.ViewOf(x), packed, snug.ViewOf(x[:4]), NF4, 96, snug.ErrConfig},
		{"negative block", snug.ViewOf(x), packed, snug.ViewOf(x[:1]), NF4, -64, snug.ErrConfig},
		{"x of integers", snug.SliceView(make([]int32, 300)), packed, snug.ViewOf(x[:5]), NF4, 64, snug.ErrDType},
		{"zero view", snug.View{}, snug.View{}, snug.View{}, NF4, 64, snug.ErrDType},
		{"codes of floats", snug.ViewOf(x), snug.ViewOf(x[:150]), snug.ViewOf(x[:5]), NF4, 64, snug.ErrDType},
		{"absmax in half", snug.ViewOf(x), packed, snug.SliceView(make([]snug.Float16, 5)), NF4, 64, snug.ErrDType},
		{"few codes", snug.ViewOf(x), part(packed, 0, 149), snug.ViewOf(x[:5]), NF4, 64, snug.ErrShape},
		{"few absmax", snug.ViewOf(x), packed, snug.ViewOf(x[:4]), NF4, 64, snug.ErrShape},
		{"devices", there.View(), packed, snug.ViewOf(x[:5]), NF4, 64, snug.ErrDevice},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorIs(t, Quantize(c.packed, c.abs, c.x, c.t, c.block), c.want)
			require.ErrorIs(t, Dequantize(c.x, c.packed, c.abs, c.t, c.block), c.want)
		})
	}
}

//check:in tiers
func TestTypes(t *testing.T) {
	for _, format := range formats {
		got, err := ParseType(format.String())
		require.NoError(t, err)
		require.Equal(t, format, got)
	}
	_, err := ParseType("int4")
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, "invalid", Type(0).String())
	require.Zero(t, Type(9).Values())
	require.Equal(t, float32(1), FP4.Values()[3])
	require.Equal(t, 3, PackedBytes(5))
	require.Zero(t, PackedBytes(-1))
}

//check:in race
func TestWorkersDoNotMatter(t *testing.T) {
	x := kerneltest.Normal(5, 100_003)
	run := func(workers int) ([]uint8, []float32) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
		packed, absmax := make([]uint8, PackedBytes(len(x))), make([]float32, Blocks(len(x), 32))
		require.NoError(t, Quantize(packed, absmax, x, NF4, 32))
		return packed, absmax
	}
	packed1, absmax1 := run(1)
	packed2, absmax2 := run(2)
	require.Equal(t, packed1, packed2)
	require.Equal(t, absmax1, absmax2)
}

func TestNoAllocations(t *testing.T) {
	x := kerneltest.Normal(5, 20_001)
	packed, absmax := make([]uint8, PackedBytes(len(x))), make([]float32, Blocks(len(x), 64))
	bf16, codes, nested := make([]snug.BFloat16, len(x)), make([]uint8, len(absmax)), make([]float32, Blocks(len(absmax), 256))
	w, err := NewWeight(x, []int{len(x)}, Options{})
	require.NoError(t, err)
	kerneltest.NoAllocs(t, func() {
		_ = Quantize(packed, absmax, x, NF4, 64)
		_ = Dequantize(x, packed, absmax, NF4, 64)
		_ = Dequantize(bf16, packed, absmax, NF4, 64)
		_ = Quantize(packed, absmax, bf16, NF4, 64)
		_, _ = DoubleQuantize(codes, nested, absmax)
		_ = DoubleDequantize(absmax, codes, nested, 1)
		_ = w.Dequantize(snug.ViewOf(x))
	})
}

// TestLargeDequantize has results that go around the caches.
func TestLargeDequantize(t *testing.T) {
	const n, block = half.StreamBytes/2 + 77, 64
	packed, absmax, values := make([]uint8, PackedBytes(n)), kerneltest.Normal(1, Blocks(n, block)), NF4.Values()
	for i := range packed {
		packed[i] = uint8(i * 7)
	}
	want := make([]float32, n)
	for i := range want {
		want[i] = values[codeOf(packed, i)] * absmax[i/block]
	}
	got, bf16, wantBF16 := make([]float32, n), make([]snug.BFloat16, n), make([]snug.BFloat16, n)
	require.NoError(t, Dequantize(got, packed, absmax, NF4, block))
	require.True(t, slices.Equal(want, got))
	require.NoError(t, Dequantize(bf16, packed, absmax, NF4, block))
	half.Store(snug.ViewOf(wantBF16), 0, want)
	require.True(t, slices.Equal(wantBF16, bf16))
}

// roundTrips checks codes against the definition, and that no element moves
// further than half the widest gap of the format.
func roundTrips(t *rapid.T) {
	value := rapid.Custom(func(t *rapid.T) float32 {
		x := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		if x-x != 0 {
			return 0
		}
		return x
	})
	x := rapid.SliceOf(value).Draw(t, "src")
	block := 32 << rapid.IntRange(0, 7).Draw(t, "block")
	format := rapid.SampledFrom(formats).Draw(t, "format")
	packed, absmax, back := make([]uint8, PackedBytes(len(x))), make([]float32, Blocks(len(x), block)), make([]float32, len(x))
	require.NoError(t, Quantize(packed, absmax, x, format, block))
	require.NoError(t, Dequantize(back, packed, absmax, format, block))
	wantPacked, wantAbsmax := quantizeReference(x, format, block)
	require.True(t, slices.Equal(wantPacked, packed))
	require.True(t, slices.Equal(wantAbsmax, absmax))
	for i := range x {
		require.LessOrEqual(t, math.Abs(float64(x[i])-float64(back[i])), float64(absmax[i/block])*0.16667+1e-44, "element %d", i)
	}
}

func TestRoundTrips(t *testing.T) { rapid.Check(t, roundTrips) }
func FuzzRoundTrips(f *testing.F) { f.Fuzz(rapid.MakeFuzz(roundTrips)) }

// TestKernelNames holds the names by which devices find their kernels.
func TestKernelNames(t *testing.T) {
	for name, job := range map[string]driver.Job{"qlora.quantize": new(quantizeJob), "qlora.dequantize": new(dequantizeJob)} {
		require.Equal(t, name, job.Kernel())
	}
}

// BenchmarkQuantize has vectors far beyond the last cache. The bytes are those of
// one pass.
func BenchmarkQuantize(b *testing.B) {
	benchmarkQuantization(b, func(packed []uint8, absmax []float32, x snug.View) error { return Quantize(packed, absmax, x, NF4, 64) })
}

func BenchmarkDequantize(b *testing.B) {
	benchmarkQuantization(b, func(packed []uint8, absmax []float32, x snug.View) error {
		return Dequantize(x, packed, absmax, NF4, 64)
	})
}

func benchmarkQuantization(b *testing.B, do func(packed []uint8, absmax []float32, x snug.View) error) {
	const n, parts, block = 1 << 23, 8, 64
	packed, absmax := make([]uint8, n*parts/2), make([]float32, n*parts/block)
	x, bf16 := snug.ViewOf(kerneltest.Normal(5, n*parts)), snug.ViewOf(make([]snug.BFloat16, n*parts))
	half.Convert(bf16, x, 0, n*parts, false)
	require.NoError(b, Quantize(packed, absmax, x, NF4, block))
	for _, v := range []snug.View{x, bf16} {
		b.Run(v.DType().String(), func(b *testing.B) {
			kerneltest.OfCopy(b, parts, n/2+n*v.DType().Size()+4*n/block, func(i int) {
				lo, hi := cpu.Chunk(n*parts, n, i)
				_ = do(packed[lo/2:hi/2], absmax[lo/block:hi/block], part(v, lo, hi))
			})
		})
	}
}
