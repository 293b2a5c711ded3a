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

// gradient returns start·beta + dy·W in float64, and the sum of the magnitudes.
func (f fewWeight) gradient(rows int, dy, w, start []float32, beta float32) (want, bound []float64) {
	want, bound = matrix(rows, f.in, f.out,
		func(i, k int) float64 { return float64(dy[i*f.out+k]) }, func(k, j int) float64 { return float64(w[k*f.in+j]) })
	if beta != 0 {
		for i, s := range start {
			want[i] += float64(beta) * float64(s)
			bound[i] += math.Abs(float64(beta) * float64(s))
		}
	}
	return want, bound
}

// backWeights are fewWeights and those with more outputs and columns than an item takes.
var backWeights = append([]fewWeight{
	{3, 64, Options{}},
	{131, 96, Options{Block: 32, Single: true}},
	{65, 1184, Options{Type: FP4, Block: 32}},
	{70, 4224, Options{Block: 128}},
	{70, 1184, Options{Type: MXFP4}},
	{131, 1152, Options{Type: FP8}},
	{65, 2240, Options{Type: FP8, Scales: ByRow}},
	{130, 5632, Options{Type: FP8E5M2, Scales: ByTensor}},
	{67, 288, Options{Type: INT8}},
}, fewWeights...)

// TestBackwardFew compares few rows with products in float64 within the documented bound, and
// the products of tiles within theirs. dx lies between guard words, and does not count where
// beta is 0.
//
//check:in race
func TestBackwardFew(t *testing.T) {
	cpu := backends(t)[0]
	require.True(t, onCPU(cpu))
	for n, f := range backWeights {
		t.Run(fmt.Sprintf("%dx%d/%v/%d", f.out, f.in, f.opt.Type, f.opt.Block), func(t *testing.T) {
			w, err := NewWeight(kerneltest.Normal(1, f.out*f.in), []int{f.out, f.in}, f.opt)
			require.NoError(t, err)
			elements := make([]float32, w.Len())
			require.NoError(t, w.Dequantize(snug.ViewOf(elements)))
			for i := range w.fewRowsBackward() + 1 {
				rows := i + 1
				dt, to := floatTypes[(i+n)%3], floatTypes[(i/3+n)%3]
				beta := []float32{0, 1, 0.5}[(i+i/3+n)%3]
				l, err := NewLinear(w, dt, 0)
				require.NoError(t, err)
				dy := on(t, cpu.Dev, dt, kerneltest.Normal(uint64(rows), rows*f.out))
				first := values(t, on(t, cpu.Dev, to, kerneltest.Normal(3, rows*f.in)))
				want, bound := f.gradient(rows, values(t, dy), elements, first, beta)
				if beta == 0 {
					first[0] = float32(math.NaN())
				}
				few := l.fewBackward(rows, on(t, cpu.Dev, to, first), dy, beta)
				require.Equal(t, rows <= w.fewRowsBackward(), few)
				codes, tiles := float64(f.out+2)*0x1p-24, 2*float64(f.out+4)*0x1p-24+roundings[dt]
				if !few {
					codes = tiles
				}
				for _, way := range []struct {
					name     string
					do       func(dx, dy snug.View, beta float32) error
					rounding float64
				}{
					{"codes", l.Backward, codes},
					{"tiles", func(dx, dy snug.View, beta float32) error { return l.backwardTiles(rows, dx, dy, beta) }, tiles},
				} {
					dx := kerneltest.PutFloats(t, cpu, to, first)
					require.NoError(t, way.do(dx.View, dy, beta))
					for i, v := range dx.Get() {
						most := way.rounding * bound[i]
						most += roundings[to]*(math.Abs(want[i])+most) + 0x1p-25
						if !(math.Abs(want[i]-float64(v)) <= most) {
							t.Fatalf("%s: %v to %v, %d rows, beta %v: element %d is %g, want %g within %g", way.name, dt, to, rows, beta, i, v, want[i], most)
						}
					}
				}
			}
		})
	}
}

// TestBackwardFewIsWhole: dx of 16 bits is the sums rounded once. The result is the same with
// one worker, and a call allocates nothing.
//
//check:in race
func TestBackwardFewIsWhole(t *testing.T) {
	const rows, in, out = 3, 2560, 300
	w, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, Options{})
	require.NoError(t, err)
	for _, dt := range floatTypes {
		l, err := NewLinear(w, dt, 0)
		require.NoError(t, err)
		dy := on(t, snug.CPU(), dt, kerneltest.Normal(2, rows*out))
		dx := make([]float32, rows*in)
		require.NoError(t, l.Backward(snug.ViewOf(dx), dy, 0))
		for _, to := range floatTypes {
			low := on(t, snug.CPU(), to, make([]float32, rows*in))
			require.NoError(t, l.Backward(low, dy, 0))
			sameBits(t, values(t, on(t, snug.CPU(), to, dx)), values(t, low))
		}
		before := runtime.GOMAXPROCS(1)
		again := make([]float32, rows*in)
		err = l.Backward(snug.ViewOf(again), dy, 0)
		runtime.GOMAXPROCS(before)
		require.NoError(t, err)
		sameBits(t, dx, again)
		kerneltest.NoAllocs(t, func() { _ = l.Backward(snug.ViewOf(dx), dy, 1) })
	}
}

// TestBackwardFewErrors: what products of tiles refuse is refused.
//
//check:in race
func TestBackwardFewErrors(t *testing.T) {
	w, err := NewWeight(kerneltest.Normal(1, 64*64), []int{64, 64}, Options{})
	require.NoError(t, err)
	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	whole := kerneltest.Normal(2, 65)
	dy, dx := snug.ViewOf(whole[:64]), snug.ViewOf(make([]float32, 64))
	require.ErrorIs(t, l.Backward(snug.ViewOf(whole[1:]), dy, 0), snug.ErrConfig)
	require.ErrorIs(t, l.Backward(dx, dy, float32(math.Inf(1))), snug.ErrConfig)
	require.ErrorIs(t, l.Backward(snug.SliceView(make([]uint8, 64)), dy, 0), snug.ErrDType)
	require.NoError(t, w.Close())
	require.ErrorIs(t, l.Backward(dx, dy, 0), snug.ErrDevice)
	sameBits(t, make([]float32, 64), values(t, dx))
}

// BenchmarkBackward is BenchmarkForward of the gradient.
func BenchmarkBackward(b *testing.B) {
	benchmarkFew(b, func(l *Linear, rows int, dx, dy snug.View) map[string]func() error {
		return map[string]func() error{
			"codes": func() error { l.backwardFew(rows, dx, dy, 0); return nil },
			"tiles": func() error { return l.backwardTiles(rows, dx, dy, 0) },
		}
	})
}
