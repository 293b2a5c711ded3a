package amp

import (
	"fmt"
	"math"
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

func TestCast(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Place) {
		for _, from := range floats {
			for _, to := range floats {
				for _, n := range []int{0, 1, 7, 1025, castChunk + 3} {
					for _, skip := range skips {
						castAfter(t, p, from, to, n, skip)
					}
				}
			}
		}
	})
}

func castAfter(t *testing.T, p kerneltest.Place, from, to snug.DType, n, skip int) {
	vals := append(append(make([]float32, skip), special...), randoms(1, n)...)[:skip+n]
	src := kerneltest.PutFloats(t, p, from, vals)
	dst := kerneltest.PutFloats(t, p, to, make([]float32, skip+n))
	require.NoError(t, Cast(after(t, dst.View, skip), after(t, src.View, skip)))
	requireSame(t, roundAll(to, roundAll(from, vals)), dst.Get(), from, to, n, skip)
}

// TestCastEveryCode casts all values of 16 bits.
func TestCastEveryCode(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Place) {
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
	dev := kerneltest.Places(t)[2]
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
		{"closed", closed(t, snug.F32, 4), snug.View{}, snug.ErrDType},
		{"overlap", snug.ViewOf(whole[1:5]), snug.ViewOf(whole[:4]), snug.ErrConfig},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			whole[0] = 5
			require.ErrorIs(t, Cast(test.dst, test.src), test.want)
			require.Equal(t, []float32{5, 0, 0, 0, 0, 0, 0, 0}, whole)
		})
	}
	require.ErrorIs(t, Cast(closed(t, snug.F32, 4), closed(t, snug.F32, 4)), snug.ErrDevice)
	require.NoError(t, Cast(whole, whole), "a vector onto itself")
	require.NoError(t, Cast(halves, halves))
	require.NoError(t, Cast(whole[4:], whole[:4]), "neighbours do not overlap")
}

func TestCastOverlapOfArrays(t *testing.T) {
	for _, p := range kerneltest.Places(t)[1:] {
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
