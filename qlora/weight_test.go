package qlora

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestWeight compares weights of all backends with the functions they are made of.
func TestWeight(t *testing.T) {
	const n = 37 * 1001
	x := kerneltest.Normal(3, n)
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, dt := range floatTypes {
			for _, opt := range []Options{{}, {Type: FP4, Block: 32}, {Block: 4096}, {Single: true}} {
				src := kerneltest.PutFloats(t, backend, dt, x)
				w, err := NewWeight(src.View, []int{37, 1001}, opt)
				require.NoError(t, err)
				require.Equal(t, []int{37, 1001}, w.Shape())
				require.Equal(t, n, w.Len())
				require.Equal(t, dt, w.DType())
				require.Equal(t, !opt.Single, w.Double())
				require.Equal(t, src.Device(), w.Device())
				require.Equal(t, PackedBytes(n), w.Packed().Len())

				packed, absmax := make([]uint8, PackedBytes(n)), make([]float32, Blocks(n, w.Block()))
				require.NoError(t, Quantize(packed, absmax, kerneltest.PutFloats(t, kerneltest.Backend{}, dt, x).View, w.Type(), w.Block()))
				if w.Double() {
					codes, nested := make([]uint8, len(absmax)), make([]float32, Blocks(len(absmax), 256))
					offset, err := DoubleQuantize(codes, nested, absmax)
					require.NoError(t, err)
					require.NoError(t, DoubleDequantize(absmax, codes, nested, offset))
				}
				got, err := w.Absmax()
				require.NoError(t, err)
				sameBits(t, absmax, got)

				for _, to := range floatTypes {
					want, dst := kerneltest.PutFloats(t, kerneltest.Backend{}, to, x), kerneltest.PutFloats(t, backend, to, x)
					require.NoError(t, Dequantize(want.View, packed, absmax, w.Type(), w.Block()))
					require.NoError(t, w.Dequantize(dst.View))
					sameBits(t, want.Get(), dst.Get())
				}
				require.NoError(t, w.Close())
				require.NoError(t, w.Close())
				require.ErrorIs(t, w.Dequantize(src.View), snug.ErrDevice)
			}
		}
	})
}

// TestBytes holds the overhead of absmax: 0.5 bits an element, 0.127 with double
// quantization.
func TestBytes(t *testing.T) {
	const n = 1 << 20
	for _, c := range []struct {
		opt  Options
		bits float64
	}{{Options{Single: true}, 4.5}, {Options{}, 4 + 8./64 + 32./(64*256)}, {Options{Block: 4096}, 4 + 8./4096 + 32./(4096*256)}} {
		w, err := NewWeight(make([]float32, n), []int{n}, c.opt)
		require.NoError(t, err)
		require.InDelta(t, c.bits, 8*float64(w.Bytes())/n, 1e-9)
	}
}

// TestSpecialWeights has no elements, one, and blocks that are all the same.
func TestSpecialWeights(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for _, c := range []struct{ x, want []float32 }{
			{[]float32{}, []float32{}},
			{[]float32{-3}, []float32{-3}},
			{make([]float32, 65), make([]float32, 65)},
		} {
			w, err := NewWeight(kerneltest.Put(t, backend, c.x).View, []int{len(c.x)}, Options{})
			require.NoError(t, err)
			dst := kerneltest.Put(t, backend, make([]float32, len(c.x)))
			require.NoError(t, w.Dequantize(dst.View))
			sameBits(t, c.want, append([]float32{}, dst.Get()...))
			require.NoError(t, w.Close())
		}
	})
}

func TestWeightErrors(t *testing.T) {
	x := make([]float32, 64)
	nan := append([]float32{float32(math.NaN())}, x...)
	for _, c := range []struct {
		name  string
		src   snug.View
		shape []int
		opt   Options
		want  error
	}{
		{"format", snug.ViewOf(x), []int{64}, Options{Type: 7}, snug.ErrConfig},
		{"block", snug.ViewOf(x), []int{64}, Options{Block: 63}, snug.ErrConfig},
		{"shape", snug.ViewOf(x), []int{8, 9}, Options{}, snug.ErrShape},
		{"negative", snug.ViewOf(x), []int{-8, -8}, Options{}, snug.ErrShape},
		{"too large", snug.ViewOf(x), []int{math.MaxInt, 2, 2}, Options{}, snug.ErrShape},
		{"type", snug.SliceView(make([]uint8, 64)), []int{64}, Options{}, snug.ErrDType},
		{"NaN", snug.ViewOf(nan), []int{65}, Options{}, snug.ErrNonFinite},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := NewWeight(c.src, c.shape, c.opt)
			require.ErrorIs(t, err, c.want)
		})
	}
	dev := kerneltest.Backends(t)[2].Dev
	there, err := snug.Make[float32](dev, 65)
	require.NoError(t, err)
	require.NoError(t, there.CopyIn(nan))
	_, err = NewWeight(there, []int{65}, Options{})
	require.ErrorIs(t, err, snug.ErrNonFinite, "with double quantization devices see it too")

	w, err := NewWeight(x, []int{64}, Options{})
	require.NoError(t, err)
	require.ErrorIs(t, w.Dequantize(snug.ViewOf(x[1:])), snug.ErrShape)
	require.ErrorIs(t, w.Dequantize(w.Packed()), snug.ErrDType)
	require.ErrorIs(t, w.Dequantize(part(there.View(), 0, 64)), snug.ErrDevice)
}

func TestDoubleErrors(t *testing.T) {
	dev := kerneltest.Backends(t)[2].Dev
	there, err := snug.Make[float32](dev, 300)
	require.NoError(t, err)
	codes, nested, absmax := snug.SliceView(make([]uint8, 300)), snug.ViewOf(make([]float32, 2)), snug.ViewOf(make([]float32, 300))
	for _, c := range []struct {
		name                  string
		codes, nested, absmax snug.View
		want                  error
	}{
		{"codes of floats", absmax, nested, absmax, snug.ErrDType},
		{"nested codes", codes, part(codes, 0, 2), absmax, snug.ErrDType},
		{"absmax of codes", codes, nested, codes, snug.ErrDType},
		{"few codes", part(codes, 0, 299), nested, absmax, snug.ErrShape},
		{"few nested", codes, part(nested, 0, 1), absmax, snug.ErrShape},
		{"devices", codes, nested, there.View(), snug.ErrDevice},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := DoubleQuantize(c.codes, c.nested, c.absmax)
			require.ErrorIs(t, err, c.want)
			require.ErrorIs(t, DoubleDequantize(c.absmax, c.codes, c.nested, 0), c.want)
		})
	}
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), -1} {
		_, err := DoubleQuantize(make([]uint8, 2), []float32{7}, []float32{1, bad})
		require.ErrorIs(t, err, snug.ErrNonFinite)
		require.ErrorContains(t, err, "absmax[1]")
	}
	offset, err := DoubleQuantize([]uint8{}, []float32{}, []float32{})
	require.NoError(t, err)
	require.Zero(t, offset)
}
