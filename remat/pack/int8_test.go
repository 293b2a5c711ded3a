package pack

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/mx"
)

// int8Values are n elements of many sizes, some of them not finite.
func int8Values(seed uint64, n int) []float32 {
	rng := rand.New(rand.NewPCG(seed, 3))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * math.Exp2(float64(i/mx.Block%24)-12))
		switch rng.IntN(300) {
		case 0:
			x[i] = float32(math.Inf(1))
		case 1:
			x[i] = float32(math.NaN())
		case 2:
			x[i] = 0x1p-140
		}
	}
	return x
}

// TestInt8 compares every backend with the kernels' Go tier, for every type and odd
// starts.
func TestInt8(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range []snug.DType{snug.F32, snug.F16, snug.BF16} {
			for _, n := range []int{0, 1, 31, 32, 33, 1000, 2*1024 + 5, maskChunk + 40} {
				for _, skip := range []int{0, 9} {
					if n < maskChunk || skip == 0 {
						packAndUnpack(t, p, dt, n, skip)
					}
				}
			}
		}
	})
}

func packAndUnpack(t *testing.T, p kerneltest.Backend, dt snug.DType, n, skip int) {
	from := func(v snug.View) snug.View {
		tail, err := v.Slice(skip, v.Len())
		require.NoError(t, err)
		return tail
	}
	x := kerneltest.PutFloats(t, p, dt, int8Values(uint64(n), n+skip))
	codes := kerneltest.Put(t, p, make([]uint8, n+skip))
	scales := kerneltest.Put(t, p, make([]uint8, Int8Scales(n)+skip))
	require.NoError(t, Int8(from(codes.View), from(scales.View), from(x.View)))

	padded := make([]float32, Int8Scales(n)*mx.Block)
	copy(padded, x.Get()[skip:])
	wantCodes, wantScales := make([]uint8, len(padded)), make([]uint8, Int8Scales(n))
	mx.Registry.Best().Encode(wantCodes, wantScales, padded)
	require.Equal(t, wantCodes[:n], append([]uint8{}, codes.Get()[skip:]...), "%v %d %d", dt, n, skip)
	require.Equal(t, wantScales, append([]uint8{}, scales.Get()[skip:]...))

	dst := kerneltest.PutFloats(t, p, dt, make([]float32, n+skip))
	require.NoError(t, UnpackInt8(from(dst.View), from(codes.View), from(scales.View)))
	want := make([]float32, len(padded))
	mx.Registry.Best().Decode(want, wantCodes, wantScales)
	got := dst.Get()[skip:]
	for i, w := range want[:n] {
		if w != w {
			require.True(t, got[i] != got[i])
			continue
		}
		if dt == snug.F16 && math.Abs(float64(w)) > 65504 {
			continue
		}
		require.Equal(t, math.Float32bits(w), math.Float32bits(got[i]), "%v %d: element %d: %v, %v", dt, n, i, w, got[i])
	}
}

// int8Property is the error bound of the documentation.
func int8Property(t *rapid.T) {
	x := rapid.SliceOfN(rapid.Float32Range(-1e30, 1e30), 0, 200).Draw(t, "x")
	codes, scales, got := make([]uint8, len(x)), make([]uint8, Int8Scales(len(x))), make([]float32, len(x))
	require.NoError(t, Int8(codes, scales, x))
	require.NoError(t, UnpackInt8(got, codes, scales))
	for lo := 0; lo < len(x); lo += mx.Block {
		block := x[lo:min(lo+mx.Block, len(x))]
		largest := 0.0
		for _, v := range block {
			largest = max(largest, math.Abs(float64(v)))
		}
		for i, v := range block {
			require.LessOrEqual(t, math.Abs(float64(v)-float64(got[lo+i])), max(largest/64, 0x1p-126))
		}
	}
}

func TestInt8Property(t *testing.T) { rapid.Check(t, int8Property) }
func FuzzInt8(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(int8Property)) }

func TestInt8Errors(t *testing.T) {
	x, codes, scales := make([]float32, 40), make([]uint8, 40), []uint8{7, 7}
	away := kerneltest.Put(t, kerneltest.Backends(t)[2], codes).View
	tests := []struct {
		name             string
		codes, scales, x snug.View
		want             error
	}{
		{"x", snug.SliceView(codes), snug.SliceView(scales), snug.SliceView(make([]int32, 40)), snug.ErrDType},
		{"codes", snug.ViewOf(x), snug.SliceView(scales), snug.ViewOf(x), snug.ErrDType},
		{"scales", snug.SliceView(codes), snug.ViewOf(x[:2]), snug.ViewOf(x), snug.ErrDType},
		{"too few codes", snug.SliceView(codes[1:]), snug.SliceView(scales), snug.ViewOf(x), snug.ErrShape},
		{"too few scales", snug.SliceView(codes), snug.SliceView(scales[1:]), snug.ViewOf(x), snug.ErrShape},
		{"device", away, snug.SliceView(scales), snug.ViewOf(x), snug.ErrDevice},
	}
	for _, test := range tests {
		require.ErrorIs(t, Int8(test.codes, test.scales, test.x), test.want, test.name)
		require.ErrorIs(t, UnpackInt8(test.x, test.codes, test.scales), test.want, test.name)
	}
	require.Equal(t, []uint8{7, 7}, scales)
	require.Zero(t, Int8Scales(-5))
	kerneltest.NoAllocs(t, func() { _ = Int8(codes, scales, x) })
	kerneltest.NoAllocs(t, func() { _ = UnpackInt8(x, codes, scales) })
}
