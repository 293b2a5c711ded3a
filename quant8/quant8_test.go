package quant8

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
	"github.com/snug-ml/snug/internal/driver"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

var floatTypes = []snug.DType{snug.F32, snug.F16, snug.BF16}

// quantizeReference is the definition: x/absmax by the nearest entry.
func quantizeReference(x []float32, m *Map, block int) (codes []uint8, absmax []float32) {
	for lo := 0; lo < len(x); lo += block {
		b := x[lo:min(lo+block, len(x))]
		a := float32(0)
		for _, v := range b {
			a = max(a, float32(math.Abs(float64(v))))
		}
		absmax = append(absmax, a)
		for _, v := range b {
			if a > 0 {
				v /= a
			}
			codes = append(codes, nearer(m, v))
		}
	}
	return codes, absmax
}

// nearer is nearest in less time: it compares the entries next to x.
func nearer(m *Map, x float32) uint8 {
	c, _ := slices.BinarySearch(m[:], x)
	if c > 0 && (c == len(m) || float64(x)-float64(m[c-1]) <= float64(m[c])-float64(x)) {
		c--
	}
	for c > 0 && m[c-1] == m[c] {
		c--
	}
	return uint8(c)
}

// skips are how many elements of a buffer come before the vector under test:
// with the guard words of kerneltest, it starts at an odd element, or at a
// multiple of 16 bytes.
var skips = []int{0, 9}

func onCPU(backend kerneltest.Backend) bool { return backend.Dev == nil || backend.Dev.IsCPU() }

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
			for _, isSigned := range []bool{true, false} {
				for _, block := range []int{32, 33, 100, 256, 1024, 4096} {
					for _, n := range []int{0, 1, block - 1, block, block + 1, 2*block + 5, 5*block + 12} {
						if n > 10_000 {
							continue
						}
						t.Run(fmt.Sprintf("%v/%v/%d/%d", dt, isSigned, block, n), func(t *testing.T) {
							for _, skip := range skips {
								roundTrip(t, backend, dt, DynamicMap(isSigned), block, kerneltest.Normal(uint64(n), n), skip)
							}
						})
					}
				}
			}
		}
	})
}

// roundTrip quantizes x rounded to dt and back.
func roundTrip(t *testing.T, backend kerneltest.Backend, dt snug.DType, m *Map, block int, x []float32, skip int) {
	n, none := len(x), make([]float32, skip)
	src := kerneltest.PutFloats(t, backend, dt, append(none, x...))
	codes := kerneltest.Put(t, backend, make([]uint8, skip+n))
	absmax := kerneltest.Put(t, backend, make([]float32, Blocks(n, block)))
	dst := kerneltest.PutFloats(t, backend, dt, make([]float32, skip+n))
	there := after(t, codes.View, skip)
	require.NoError(t, Quantize(there, absmax.View, after(t, src.View, skip), m, block))
	require.NoError(t, Dequantize(after(t, dst.View, skip), there, absmax.View, m, block))

	wantCodes, wantAbsmax := quantizeReference(src.Get()[skip:], m, block)
	require.True(t, equal(append(make([]uint8, skip), wantCodes...), codes.Get()))
	require.True(t, equal(wantAbsmax, absmax.Get()))
	want := make([]float32, n)
	for i, c := range wantCodes {
		want[i] = m[c] * wantAbsmax[i/block]
	}
	want = kerneltest.PutFloats(t, kerneltest.Backend{}, dt, want).Get()
	require.True(t, equal(append(none, want...), dst.Get()))
}

// TestOtherMaps compares the codes of all backends with those of the encoder, for
// values around the midpoints of maps of all kinds.
func TestOtherMaps(t *testing.T) {
	tiny, huge, beyond, repeated := new(Map), new(Map), new(Map), new(Map)
	for c := range tiny {
		tiny[c] = float32(c-100) * 0x1p-149
		huge[c] = float32(c-128) * 0x1p120
		beyond[c] = float32(c)/128 + 0.5
		repeated[c] = min(float32(c/20-5)/5, 1)
	}
	for name, m := range map[string]*Map{
		"signed": DynamicMap(true), "unsigned": DynamicMap(false), "linear": LinearMap(true), "tiny": tiny, "huge": huge, "beyond": beyond, "repeated": repeated,
	} {
		x := []float32{1, -1, 0, float32(math.Copysign(0, -1)), 1e-45, -1e-45} // the largest is 1, so that quotients are what is here
		for c := range 255 {
			mid := float32((float64(m[c]) + float64(m[c+1])) / 2)
			for _, v := range []float32{m[c], mid, math.Nextafter32(mid, 2), math.Nextafter32(mid, -2)} {
				if v >= -1 && v <= 1 {
					x = append(x, v)
				}
			}
		}
		kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
			e := newEncoder(m, false)
			codes, absmax := kerneltest.Put(t, backend, make([]uint8, len(x))), kerneltest.Put(t, backend, []float32{0})
			require.NoError(t, Quantize(codes.View, absmax.View, kerneltest.Put(t, backend, x).View, m, 2048))
			require.Equal(t, []float32{1}, absmax.Get())
			for i, c := range codes.Get() {
				require.Equal(t, e.Code(x[i]+0), c, "%s: %g", name, x[i])
				if name == "linear" || name == "repeated" { // float64 has no room for the differences of others
					require.Equal(t, nearest(m, x[i]), c, "%s: %g", name, x[i])
				}
			}
		})
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
			x[i] = 0
		case 2:
			x[i] = math.Float32frombits(rng.Uint32() & 0x807fffff) // subnormal
		case 3:
			x[i] = math.Float32frombits(rng.Uint32()%0x7f800000 | rng.Uint32()&(1<<31)) // finite
		case 4:
			x[i] *= 1e38
		}
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, isSigned := range []bool{true, false} {
			for _, skip := range skips {
				roundTrip(t, backend, snug.F32, DynamicMap(isSigned), 32, x, skip)
			}
		}
	})
}

func equal[T comparable](a, b []T) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// TestSliceForms calls the functions as programs do, with typed operands.
func TestSliceForms(t *testing.T) {
	x := kerneltest.Normal(1, 300)
	half16, bf16 := make([]snug.Float16, 300), make([]snug.BFloat16, 300)
	half.Store(snug.SliceView(half16), 0, x)
	half.Store(snug.SliceView(bf16), 0, x)
	codes, absmax, m := make([]uint8, 300), make([]float32, 2), DynamicMap(true)
	require.NoError(t, Quantize(codes, absmax, x, m, 256))
	require.NoError(t, Dequantize(x, codes, absmax, m, 256))
	require.NoError(t, Quantize(snug.FromSlice(codes), snug.FromSlice(absmax), half16, m, 256))
	require.NoError(t, Dequantize(bf16, snug.FromSlice(codes), absmax, m, 256))
	require.InDelta(t, x[0], bf16[0].Float32(), 0.05)
}

func TestSpecialBlocks(t *testing.T) {
	const block = 32
	fill := func(v float32) []float32 {
		x := make([]float32, block)
		for i := range x {
			x[i] = v
		}
		return x
	}
	negZero := float32(math.Copysign(0, -1))
	for _, c := range []struct {
		name   string
		x      []float32
		absmax float32
		back   float32 // of element 0, by the signed map
	}{
		{"zeros", fill(0), 0, 0},
		{"negative zeros", fill(negZero), 0, 0},
		{"all equal", fill(0.3), 0.3, 0.3},
		{"all equal and negative", fill(-2), 2, -2 * 0.99296875},
		{"largest", fill(math.MaxFloat32), math.MaxFloat32, math.MaxFloat32},
		{"smallest", fill(1e-45), 1e-45, 1e-45},
		{"mixed", append([]float32{1e-45}, fill(3e38)[1:]...), 3e38, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			codes, absmax, back := make([]uint8, block), []float32{9}, make([]float32, block)
			require.NoError(t, Quantize(codes, absmax, c.x, DynamicMap(true), block))
			require.Equal(t, c.absmax, absmax[0])
			require.NoError(t, Dequantize(back, codes, absmax, DynamicMap(true), block))
			require.Equal(t, c.back, back[0])
			if c.absmax == 0 {
				require.Equal(t, uint8(127), codes[0], "the code of 0")
			}
		})
	}
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
					codes := kerneltest.Put(t, backend, make([]uint8, len(x)))
					absmax := kerneltest.Put(t, backend, make([]float32, Blocks(len(x), 256)))
					err := Quantize(codes.View, absmax.View, src.View, DynamicMap(true), 256)
					if onCPU(backend) {
						require.ErrorIs(t, err, snug.ErrNonFinite)
						require.ErrorContains(t, err, fmt.Sprintf("src[%d]", at))
						require.Equal(t, make([]uint8, len(x)), codes.Get())
						require.Equal(t, make([]float32, absmax.Len()), absmax.Get())
						return
					}
					require.NoError(t, err)
					require.NoError(t, Dequantize(src.View, codes.View, absmax.View, DynamicMap(true), 256))
					for i, v := range src.Get() {
						require.Equal(t, i/256 == at/256 || i/256 == 9999/256, v != v, "only the block is NaN")
					}
				})
			}
		}
	}
}

// TestErrorBounds holds the mean errors to bounds tighter than those of
// bitsandbytes' tests, whose relative error is |x-x'|/(|x|+1e-8).
func TestErrorBounds(t *testing.T) {
	const n = 1 << 20
	rng := rand.New(rand.NewPCG(7, 7))
	uniform := make([]float32, n)
	for i := range uniform {
		uniform[i] = rng.Float32()
	}
	for _, c := range []struct {
		name     string
		x        []float32
		signed   bool
		abs, rel float64
	}{
		{"normal", kerneltest.Normal(7, n), true, 0.0088, 0.0159},
		{"uniform signed", uniform, true, 0.0033, 0.0102},
		{"uniform unsigned", uniform, false, 0.00165, 0.0052},
	} {
		t.Run(c.name, func(t *testing.T) {
			codes, absmax, back := make([]uint8, n), make([]float32, n/256), make([]float32, n)
			m := DynamicMap(c.signed)
			require.NoError(t, Quantize(codes, absmax, c.x, m, 256))
			require.NoError(t, Dequantize(back, codes, absmax, m, 256))
			abs, rel := 0.0, 0.0
			for i, x := range c.x {
				d := math.Abs(float64(x) - float64(back[i]))
				abs += d / n
				rel += d / (math.Abs(float64(x)) + 1e-8) / n
			}
			t.Logf("%s: mean absolute error %.5f, relative %.5f", c.name, abs, rel)
			require.LessOrEqual(t, abs, c.abs, c.name)
			require.LessOrEqual(t, rel, c.rel, c.name)
		})
	}
}

func TestErrors(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	there, err := snug.Make[float32](dev, 300)
	require.NoError(t, err)
	bad := DynamicMap(true)
	bad[3] = 4
	ok, x := DynamicMap(true), make([]float32, 300)
	for _, c := range []struct {
		name          string
		x, codes, abs snug.View
		m             *Map
		block         int
		want          error
	}{
		{"small block", snug.ViewOf(x), snug.SliceView(make([]uint8, 300)), snug.ViewOf(x[:10]), ok, 31, snug.ErrConfig},
		{"large block", snug.ViewOf(x), snug.SliceView(make([]uint8, 300)), snug.ViewOf(x[:1]), ok, 4097, snug.ErrConfig},
		{"negative block", snug.ViewOf(x), snug.SliceView(make([]uint8, 300)), snug.ViewOf(x[:1]), ok, -1, snug.ErrConfig},
		{"no map", snug.ViewOf(x), snug.SliceView(make([]uint8, 300)), snug.ViewOf(x[:2]), nil, 256, snug.ErrConfig},
		{"map out of order", snug.ViewOf(x), snug.SliceView(make([]uint8, 300)), snug.ViewOf(x[:2]), bad, 256, snug.ErrConfig},
		{"x of integers", snug.SliceView(make([]int32, 300)), snug.SliceView(make([]uint8, 300)), snug.ViewOf(x[:2]), ok, 256, snug.ErrDType},
		{"zero view", snug.View{}, snug.View{}, snug.View{}, ok, 256, snug.ErrDType},
		{"codes of floats", snug.ViewOf(x), snug.ViewOf(x), snug.ViewOf(x[:2]), ok, 256, snug.ErrDType},
		{"absmax in half", snug.ViewOf(x), snug.SliceView(make([]uint8, 300)), snug.SliceView(make([]snug.Float16, 2)), ok, 256, snug.ErrDType},
		{"few codes", snug.ViewOf(x), snug.SliceView(make([]uint8, 299)), snug.ViewOf(x[:2]), ok, 256, snug.ErrShape},
		{"few absmax", snug.ViewOf(x), snug.SliceView(make([]uint8, 300)), snug.ViewOf(x[:1]), ok, 256, snug.ErrShape},
		{"devices", there.View(), snug.SliceView(make([]uint8, 300)), snug.ViewOf(x[:2]), ok, 256, snug.ErrDevice},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.ErrorIs(t, Quantize(c.codes, c.abs, c.x, c.m, c.block), c.want)
			require.ErrorIs(t, Dequantize(c.x, c.codes, c.abs, c.m, c.block), c.want)
		})
	}
}

func TestBlocks(t *testing.T) {
	for _, c := range [][3]int{{0, 256, 0}, {1, 256, 1}, {256, 256, 1}, {257, 256, 2}, {-1, 256, 0}, {5, 0, 0}, {math.MaxInt, 1, math.MaxInt}} {
		require.Equal(t, c[2], Blocks(c[0], c[1]))
	}
}

//check:in race
func TestWorkersDoNotMatter(t *testing.T) {
	x, m := kerneltest.Normal(5, 100_003), DynamicMap(true)
	run := func(workers int) ([]uint8, []float32) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(workers))
		codes, absmax := make([]uint8, len(x)), make([]float32, Blocks(len(x), 100))
		require.NoError(t, Quantize(codes, absmax, x, m, 100))
		return codes, absmax
	}
	codes1, absmax1 := run(1)
	codes2, absmax2 := run(2)
	require.Equal(t, codes1, codes2)
	require.Equal(t, absmax1, absmax2)
}

func TestNoAllocations(t *testing.T) {
	x, m := kerneltest.Normal(5, 20_000), DynamicMap(true)
	codes, absmax := make([]uint8, len(x)), make([]float32, Blocks(len(x), 256))
	bf16 := make([]snug.BFloat16, len(x))
	kerneltest.NoAllocs(t, func() {
		_ = Quantize(codes, absmax, x, m, 256)
		_ = Dequantize(x, codes, absmax, m, 256)
		_ = Dequantize(bf16, codes, absmax, m, 256)
		_ = Quantize(codes, absmax, bf16, m, 256)
	})
}

// roundTrips checks that quantizing is idempotent and within half the largest
// step of the map.
func roundTrips(t *rapid.T) {
	x := rapid.SliceOf(rapid.Custom(func(t *rapid.T) float32 { return drawFloat(t, "x") })).Draw(t, "src")
	block := rapid.IntRange(MinBlock, MaxBlock).Draw(t, "block")
	m := DynamicMap(true)
	codes, absmax, back := make([]uint8, len(x)), make([]float32, Blocks(len(x), block)), make([]float32, len(x))
	require.NoError(t, Quantize(codes, absmax, x, m, block))
	require.NoError(t, Dequantize(back, codes, absmax, m, block))
	for i := range x {
		a := float64(absmax[i/block])
		require.LessOrEqual(t, math.Abs(float64(x[i])), a)
		require.InDelta(t, x[i], back[i], a*0.00704+1.5e-45, "element %d", i)
		if back[i] != 0 && math.Abs(float64(x[i])) >= 0x1p-120 {
			require.Equal(t, math.Signbit(float64(x[i])), math.Signbit(float64(back[i])), "element %d", i)
		}
	}
	reference, _ := quantizeReference(x, m, block)
	require.True(t, equal(reference, codes))
}

func TestRoundTrips(t *testing.T) { rapid.Check(t, roundTrips) }
func FuzzRoundTrips(f *testing.F) { f.Fuzz(rapid.MakeFuzz(roundTrips)) }

// TestKernelNames holds the names by which devices find their kernels.
func TestKernelNames(t *testing.T) {
	for name, job := range map[string]driver.Job{
		"quant8.quantize": new(quantizeJob), "quant8.dequantize": new(dequantizeJob),
		"quant8.step": new(stepJob), "quant8.squares": new(measureJob), "quant8.scan": new(scanJob),
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, name, job.Kernel())
		})
	}
}

// TestLargeDequantize has results that go around the caches.
func TestLargeDequantize(t *testing.T) {
	const n, block = half.StreamBytes/2 + 77, 256
	codes, absmax, m := make([]uint8, n), kerneltest.Normal(1, Blocks(n, block)), DynamicMap(true)
	want := make([]float32, n)
	for i := range codes {
		codes[i] = uint8(i * 7)
		want[i] = m[codes[i]] * absmax[i/block]
	}
	got, bf16, wantBF16 := make([]float32, n), make([]snug.BFloat16, n), make([]snug.BFloat16, n)
	require.NoError(t, Dequantize(got, codes, absmax, m, block))
	require.True(t, equal(want, got))
	require.NoError(t, Dequantize(bf16, codes, absmax, m, block))
	half.Store(snug.ViewOf(wantBF16), 0, want)
	require.True(t, equal(wantBF16, bf16))
}
