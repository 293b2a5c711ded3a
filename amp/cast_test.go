package amp

import (
	"fmt"
	"iter"
	"math"
	"os"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"github.com/x448/float16"
	"pgregory.net/rapid"
)

// round returns the value of x in dt, by the libraries' scalar functions.
func round(dt snug.DType, x float32) float32 {
	switch dt {
	case snug.F16:
		return float16.Fromfloat32(x).Float32()
	case snug.BF16:
		return snug.ToBFloat16(x).Float32()
	}
	return x
}

func roundAll(dt snug.DType, x []float32) []float32 {
	out := make([]float32, len(x))
	for i := range x {
		out[i] = round(dt, x[i])
	}
	return out
}

//check:in flush
func TestCast(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, from := range floats {
			for _, to := range floats {
				for _, n := range []int{0, 1, 7, 1025, castChunk + 3, castFew + 3} {
					for _, skip := range skips {
						castAfter(t, p, from, to, n, skip)
					}
				}
			}
		}
	})
}

func castAfter(t *testing.T, p kerneltest.Backend, from, to snug.DType, n, skip int) {
	vals := append(append(make([]float32, skip), special...), kerneltest.Uniform(1, n)...)[:skip+n]
	src := kerneltest.PutFloats(t, p, from, vals)
	dst := kerneltest.PutFloats(t, p, to, make([]float32, skip+n))
	require.NoError(t, Cast(kerneltest.After(t, dst.View, skip), kerneltest.After(t, src.View, skip)))
	requireSame(t, roundAll(to, roundAll(from, vals)), dst.Get(), from, to, n, skip)
}

// TestCastEveryCode casts all values of 16 bits.
//
//check:in nan flush
func TestCastEveryCode(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, from := range floats[1:] {
			vals := make([]float32, 1<<16)
			for i := range vals {
				vals[i] = snug.BFloat16(i).Float32()
				if from == snug.F16 {
					vals[i] = snug.Float16(i).Float32()
				}
			}
			for _, to := range floats {
				src, dst := kerneltest.PutFloats(t, p, from, vals), kerneltest.PutFloats(t, p, to, make([]float32, len(vals)))
				require.NoError(t, Cast(dst.View, src.View))
				requireSame(t, roundAll(to, vals), dst.Get(), from, to)
			}
		}
	})
}

// TestCastNaNs has every NaN of 16 bits. All backends keep it NaN, and quiet; the CPU keeps its
// payload, which NVIDIA's conversion from float16 does not.
func TestCastNaNs(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		var codes []uint16
		for i := range 1 << 16 {
			if snug.Float16(i).IsNaN() {
				codes = append(codes, uint16(i))
			}
		}
		halves := make([]snug.Float16, len(codes))
		for i, code := range codes {
			halves[i] = snug.Float16(code)
		}
		dst := kerneltest.Put(t, p, make([]float32, len(codes)))
		require.NoError(t, Cast(dst.View, kerneltest.Put(t, p, halves).View))
		canonical := 0
		for i, x := range dst.Get() {
			bits := math.Float32bits(x)
			require.True(t, x != x && bits&0x400000 != 0, "%#x became %#x", codes[i], bits)
			kept := uint32(codes[i]&0x8000)<<16 | 0x7fc00000 | uint32(codes[i]&0x3ff)<<13
			if p.Dev == nil || p.Name == "cpu" || p.Name == "opaque" {
				require.Equal(t, kept, bits, "%#x", codes[i])
			} else if bits != kept {
				canonical++
			}
		}
		if mode := os.Getenv("SNUG_EMU"); p.Name == "emu:0" && mode != "portable" && mode != "wave64" {
			require.Greater(t, canonical, len(codes)/2, "the emulator does as NVIDIA's instruction")
		}
	})
}

//check:in tiers
func TestCastTypes(t *testing.T) {
	x := []float32{1, 0x1.01p0, 1e6}
	half, brain := make([]snug.Float16, 3), make([]snug.BFloat16, 3)
	require.NoError(t, Cast(half, x))
	require.Equal(t, []snug.Float16{0x3c00, 0x3c04, 0x7c00}, half)
	require.NoError(t, Cast(brain, x))
	require.Equal(t, []snug.BFloat16{0x3f80, 0x3f80, 0x4974}, brain)
	require.NoError(t, Cast(snug.FromSlice(x), half))
	require.Equal(t, []float32{1, 0x1.01p0, inf}, x)
}

func TestCastErrors(t *testing.T) {
	whole := make([]float32, 8)
	halves := snug.FromSlice(make([]snug.Float16, 8)).View()
	dev := kerneltest.Backends(t)[2]
	away := kerneltest.PutFloats(t, dev, snug.F32, make([]float32, 4)).View
	tests := []struct {
		name     string
		dst, src snug.View
		want     error
	}{
		{"dst type", snug.SliceView(make([]uint8, 4)), snug.ViewOf(whole[:4]), snug.ErrDType},
		{"src type", snug.ViewOf(whole[:4]), snug.SliceView(make([]int32, 4)), snug.ErrDType},
		{"zero view", snug.View{}, snug.View{}, snug.ErrDType},
		{"length", snug.ViewOf(whole[:4]), snug.ViewOf(whole[5:]), snug.ErrShape},
		{"device", away, snug.ViewOf(whole[:4]), snug.ErrDevice},
		{"closed", kerneltest.Closed(t, snug.F32, 4), snug.View{}, snug.ErrDType},
		{"overlap", snug.ViewOf(whole[1:5]), snug.ViewOf(whole[:4]), snug.ErrConfig},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			whole[0] = 5
			require.ErrorIs(t, Cast(test.dst, test.src), test.want)
			require.Equal(t, []float32{5, 0, 0, 0, 0, 0, 0, 0}, whole)
		})
	}
	require.ErrorIs(t, Cast(kerneltest.Closed(t, snug.F32, 4), kerneltest.Closed(t, snug.F32, 4)), snug.ErrDevice)
	require.NoError(t, Cast(whole, whole), "a vector onto itself")
	require.NoError(t, Cast(halves, halves))
	require.NoError(t, Cast(whole[4:], whole[:4]), "neighbours do not overlap")
}

func TestCastOverlapOfArrays(t *testing.T) {
	for _, p := range kerneltest.Backends(t)[1:] {
		a, err := snug.Make[float32](p.Dev, 8)
		require.NoError(t, err)
		head, err := a.Slice(1, 5)
		require.NoError(t, err)
		tail, err := a.Slice(4, 8)
		require.NoError(t, err)
		require.NoError(t, Cast(tail, tail), p.Name)
		require.ErrorIs(t, Cast(head, tail), snug.ErrConfig, p.Name)
	}
}

// TestCastSaturates has the edges of all ranges, and every type to every other.
func TestCastSaturates(t *testing.T) {
	edges := []float32{65504, 65519.99, 65520, 65536, -65520, 0x1.fep127, 0x1.fefffep127, 0x1.ffp127, math.MaxFloat32, -math.MaxFloat32, inf, -inf, nan, 0, -1, 1e-45}
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, from := range floats {
			for _, to := range floats {
				for _, skip := range skips {
					x := roundAll(from, append(append(make([]float32, skip), edges...), kerneltest.Uniform(1, 1029)...))
					src, dst := kerneltest.PutFloats(t, p, from, x), kerneltest.PutFloats(t, p, to, make([]float32, len(x)))
					require.NoError(t, CastWith(kerneltest.After(t, dst.View, skip), kerneltest.After(t, src.View, skip), CastOptions{Saturate: true}))
					want := make([]float32, len(x))
					for i := skip; i < len(x); i++ {
						want[i] = round(to, x[i])
						if want[i]-want[i] != 0 && x[i] == x[i] {
							want[i] = float32(math.Copysign(float64(largest(to)), float64(x[i])))
						}
					}
					requireSame(t, want, dst.Get(), from, to, skip)
				}
			}
		}
	})
	require.Equal(t, float32(65504), float16.Frombits(0x7bff).Float32())
	require.Equal(t, largest(snug.BF16), snug.BFloat16(0x7f7f).Float32())
}

// pairsOf walks over casts.
func pairsOf(pairs ...CastPair) iter.Seq2[string, CastPair] {
	names := make([]string, len(pairs))
	for i := range names {
		names[i] = fmt.Sprint("v", i)
	}
	return func(yield func(string, CastPair) bool) {
		for i, p := range pairs {
			if !yield(names[i], p) {
				return
			}
		}
	}
}

// TestCastAll has more vectors than a batch, of many lengths and types.
func TestCastAll(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, o := range []CastOptions{{}, {Saturate: true}, {Stochastic: true, Draw: Draw{Seed: 3, Tensor: 40}}} {
			var pairs []CastPair
			var dsts []func() []float32
			var wants [][]float32
			for i := range 2*batchLen + 3 {
				n := []int{0, 1, 33, 1000, 70}[i%5]
				if i == 7 {
					n = castChunk + 9
				}
				from, to := floats[i%3], floats[1+i%2]
				src := kerneltest.PutFloats(t, p, from, kerneltest.Uniform(uint64(i), n))
				dst := kerneltest.PutFloats(t, p, to, make([]float32, n))
				one := kerneltest.PutFloats(t, p, to, make([]float32, n))
				pairs, dsts = append(pairs, CastPair{dst.View, src.View}), append(dsts, dst.Get)
				single := o
				single.Draw.Tensor += uint64(i)
				require.NoError(t, CastWith(one.View, src.View, single))
				wants = append(wants, one.Get())
			}
			require.NoError(t, CastAll(pairsOf(pairs...), o))
			for i := range dsts {
				requireSame(t, wants[i], dsts[i](), i)
			}
		}
	})
}

func TestCastAllErrors(t *testing.T) {
	x, half := []float32{1, 2}, make([]snug.Float16, 2)
	good := CastPair{snug.ViewOf(half), snug.ViewOf(x)}
	for _, bad := range []struct {
		pair CastPair
		want error
	}{
		{CastPair{snug.ViewOf(half), snug.ViewOf(x[:1])}, snug.ErrShape},
		{CastPair{snug.SliceView([]uint8{1}), snug.ViewOf(x[:1])}, snug.ErrDType},
		{CastPair{kerneltest.Closed(t, snug.F32, 2), kerneltest.Closed(t, snug.F32, 2)}, snug.ErrDevice},
	} {
		err := CastAll(pairsOf(good, bad.pair), CastOptions{})
		require.ErrorIs(t, err, bad.want)
		require.ErrorContains(t, err, `"v1"`)
		require.Equal(t, []snug.Float16{0, 0}, half, "nothing is written")
	}
	require.ErrorIs(t, CastAll(nil, CastOptions{}), snug.ErrConfig)
	walks := 0
	err := CastAll(func(yield func(string, CastPair) bool) {
		if walks++; walks == 1 {
			yield("once", good)
		}
	}, CastOptions{})
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "1 vectors, then 0")
	require.NoError(t, CastAll(pairsOf(CastPair{snug.ViewOf(x), snug.ViewOf(x)}, good), CastOptions{}), "a vector onto itself")
	require.Equal(t, []snug.Float16{0x3c00, 0x4000}, half)
}

func castProperty(t *rapid.T) {
	x := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) float32 {
		return math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
	}), 0, 3000).Draw(t, "x")
	for _, to := range floats {
		got := make([]float32, len(x))
		switch to {
		case snug.F16:
			mid := make([]snug.Float16, len(x))
			require.NoError(t, Cast(mid, x))
			require.NoError(t, Cast(got, mid))
		case snug.BF16:
			mid := make([]snug.BFloat16, len(x))
			require.NoError(t, Cast(mid, x))
			require.NoError(t, Cast(got, mid))
		default:
			require.NoError(t, Cast(got, x))
		}
		requireSame(t, roundAll(to, x), got, fmt.Sprint(to))
	}
}

//check:in tiers
func TestCastProperty(t *testing.T) { rapid.Check(t, castProperty) }
func FuzzCast(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(castProperty)) }

// TestCastOfLargeVectors has results that go around the caches.
func TestCastOfLargeVectors(t *testing.T) {
	const n = half.StreamBytes/2 + 5
	src := make([]float32, n)
	for i := range src {
		src[i] = float32(i&0xfffff) * 0.37
	}
	got, want := make([]snug.BFloat16, n), make([]snug.BFloat16, n)
	require.NoError(t, Cast(got, src))
	half.Store(snug.ViewOf(want), 0, src)
	require.True(t, slices.Equal(want, got))
	require.NoError(t, Cast(src, got))
	back := make([]float32, n)
	half.Load(back, snug.ViewOf(got), 0)
	require.True(t, slices.Equal(back, src))
}
