package qlora

import (
	"fmt"
	"math"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestForwardFew compares few rows of x with products in float64, for whole blocks in rows
// of the weight and outputs that more than one worker has.
func TestForwardFew(t *testing.T) {
	for _, tc := range []struct {
		out, in int
		opt     Options
	}{
		{1, 64, Options{}},
		{33, 192, Options{Block: 32, Single: true}},
		{2100, 32, Options{Type: FP4, Block: 32}},
		{300, 512, Options{Block: 64}}, // more than 256 blocks
		{3, 100, Options{}},            // no whole blocks
		{70, 96, Options{Type: MXFP4}},
		{300, 512, Options{Type: MXFP4}},
		{200, 192, Options{Type: FP8}}, // parts of blocks
		{5, 5632, Options{Type: FP8, Scales: ByRow}},
		{70, 384, Options{Type: FP8E5M2, Scales: ByTensor}},
		{70, 256, Options{Type: INT8}},
		{70, 256, Options{Type: INT8, Outliers: []int{0, 9, 255}}}, // decoded to a tile
		{3, 100, Options{Type: FP8}},
	} {
		weight := kerneltest.Normal(1, tc.out*tc.in)
		w, err := NewWeight(weight, []int{tc.out, tc.in}, tc.opt)
		require.NoError(t, err)
		require.NoError(t, w.Dequantize(snug.ViewOf(weight)))
		for _, dt := range floatTypes {
			l, err := NewLinear(w, dt, 0)
			require.NoError(t, err)
			for _, rows := range []int{1, 2, w.fewRows(), w.fewRows() + 1} {
				x, start := on(t, snug.CPU(), dt, kerneltest.Normal(2, rows*tc.in)), kerneltest.Normal(3, rows*tc.out)
				require.Equal(t, rows <= w.fewRows() && l.block > 0, l.few(rows, snug.ViewOf(start), x, 0))
				xs := values(t, x)
				want, bound := matrix(rows, tc.out, tc.in,
					func(i, k int) float64 { return float64(xs[i*tc.in+k]) }, func(k, j int) float64 { return float64(weight[j*tc.in+k]) })
				for i, s := range start {
					want[i] += 0.5 * float64(s)
				}
				y := on(t, snug.CPU(), snug.F32, start)
				require.NoError(t, l.Forward(y, x, 0.5))
				rounding := 4e-6
				if rows > w.fewRows() || l.block == 0 {
					rounding += map[snug.DType]float64{snug.F16: 0x1p-11, snug.BF16: 0x1p-8}[dt] // of tiles
				}
				near(t, want, bound, values(t, y), rounding, fmt.Sprintf("%v, %d rows", dt, rows))
			}
		}
	}
}

// TestForwardFewTypes: y of 16 bits is rounded once, and NaNs in it do not count with beta
// 0. The result is the same with one worker, and a call allocates nothing.
//
//check:in tiers
func TestForwardFewTypes(t *testing.T) {
	const rows, in, out = 2, 256, 1500
	w, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, Options{})
	require.NoError(t, err)
	for _, dt := range floatTypes {
		l, err := NewLinear(w, dt, 0)
		require.NoError(t, err)
		x := on(t, snug.CPU(), dt, kerneltest.Normal(2, rows*in))
		y := make([]float32, rows*out)
		require.NoError(t, l.Forward(snug.ViewOf(y), x, 0))
		for _, to := range floatTypes {
			nans := make([]float32, rows*out)
			for i := range nans {
				nans[i] = float32(math.NaN())
			}
			low := on(t, snug.CPU(), to, nans)
			require.NoError(t, l.Forward(low, x, 0))
			sameBits(t, values(t, on(t, snug.CPU(), to, y)), values(t, low))
		}
		before := runtime.GOMAXPROCS(1)
		again := make([]float32, rows*out)
		err = l.Forward(snug.ViewOf(again), x, 0)
		runtime.GOMAXPROCS(before)
		require.NoError(t, err)
		sameBits(t, y, again)
		kerneltest.NoAllocs(t, func() { _ = l.Forward(snug.ViewOf(y), x, 1) })
	}
}

func TestForwardFewErrors(t *testing.T) {
	w, err := NewWeight(kerneltest.Normal(1, 64*64), []int{64, 64}, Options{})
	require.NoError(t, err)
	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	x := snug.ViewOf(kerneltest.Normal(2, 64))
	y := snug.ViewOf(make([]float32, 64))
	require.ErrorIs(t, l.Forward(x, x, 0), snug.ErrConfig)
	require.ErrorIs(t, l.Forward(y, x, float32(math.NaN())), snug.ErrConfig)
	require.ErrorIs(t, l.Forward(snug.SliceView(make([]uint8, 64)), x, 0), snug.ErrDType)
	require.NoError(t, w.Close())
	require.ErrorIs(t, l.Forward(y, x, 0), snug.ErrDevice)
	require.Zero(t, y.Float32s()[0])
}

// BenchmarkForward multiplies few rows by a weight beyond the caches, by its codes and by
// tiles.
func BenchmarkForward(b *testing.B) {
	benchmarkFew(b, func(l *Linear, rows int, x, y snug.View) map[string]func() error {
		return map[string]func() error{
			"codes": func() error { return l.forwardFew(rows, y, x, 0) },
			"tiles": func() error { return l.forwardTiles(rows, y, x, 0) },
		}
	})
}

func benchmarkFew(b *testing.B, ways func(l *Linear, rows int, x, y snug.View) map[string]func() error) {
	const in, out = 4096, 8192
	w, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, Options{})
	require.NoError(b, err)
	for _, dt := range []snug.DType{snug.F32, snug.BF16} {
		l, err := NewLinear(w, dt, 0)
		require.NoError(b, err)
		for _, rows := range []int{1, 2, 4, 8} {
			x, _, err := snug.MakeView(snug.CPU(), dt, rows*in)
			require.NoError(b, err)
			y, _, err := snug.MakeView(snug.CPU(), dt, rows*out)
			require.NoError(b, err)
			for name, do := range ways(l, rows, x, y) {
				b.Run(fmt.Sprintf("%v/%d/%s", dt, rows, name), func(b *testing.B) {
					b.SetBytes(w.Bytes())
					for b.Loop() {
						require.NoError(b, do())
					}
				})
			}
		}
	}
}
