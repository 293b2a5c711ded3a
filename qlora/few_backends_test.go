package qlora

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// fewWeight is a weight whose rows have whole blocks.
type fewWeight struct {
	out, in int
	opt     Options
}

var fewWeights = []fewWeight{
	{1, 32, Options{Type: FP4, Block: 32, Single: true}}, // one run of a few lanes
	{13, 1120, Options{Type: NF4, Block: 32}},            // the last run of a warp is partial
	{37, 192, Options{Type: FP4, Block: 64}},             // more outputs than a block of threads has, some of a warp's
	{18, 256, Options{Type: NF4, Block: 64, Single: true}},
	{5, 4096, Options{Type: NF4, Block: 4096}},
	{11, 320, Options{Type: MXFP4}},
	{3, 8192, Options{Type: FP4, Block: 4096, Single: true}},
}

// product returns start·beta + x·Wᵀ in float64, and the sum of the magnitudes.
func (f fewWeight) product(rows int, x, w, start []float32, beta float32) (want, bound []float64) {
	want, bound = matrix(rows, f.out, f.in,
		func(i, k int) float64 { return float64(x[i*f.in+k]) }, func(k, j int) float64 { return float64(w[j*f.in+k]) })
	if beta != 0 {
		for i, s := range start {
			want[i] += float64(beta) * float64(s)
			bound[i] += math.Abs(float64(beta) * float64(s))
		}
	}
	return want, bound
}

// roundings are the errors of a number that is rounded to a type.
var roundings = map[snug.DType]float64{snug.F32: 0x1p-24, snug.F16: 0x1p-11, snug.BF16: 0x1p-8}

// TestForwardFewPlaces compares few rows, and more, with products in float64 on every
// device, within the documented bound. x begins at a multiple of 16 bytes and where it does
// not; y lies between guard words, and does not count where beta is 0. A second call gives
// the same bits.
//
//check:in tiers arm64
func TestForwardFewBackends(t *testing.T) {
	for _, backend := range backends(t) {
		for n, f := range fewWeights {
			t.Run(fmt.Sprintf("%s/%dx%d/%v/%d", backend.Name, f.out, f.in, f.opt.Type, f.opt.Block), func(t *testing.T) {
				w, err := NewWeight(on(t, backend.Dev, snug.F32, kerneltest.Normal(1, f.out*f.in)), []int{f.out, f.in}, f.opt)
				require.NoError(t, err)
				defer w.Close()
				whole := on(t, backend.Dev, snug.F32, make([]float32, w.Len()))
				require.NoError(t, w.Dequantize(whole))
				elements := values(t, whole)
				for i, rows := range []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 32, 33} {
					if rows > 12 && f.out*f.in > 10000 {
						break
					}
					dt, to := floatTypes[(i+n)%3], floatTypes[(i/3+n)%3]
					beta := []float32{0, 1, 0.5}[(i+i/3+n)%3]
					l, err := NewLinear(w, dt, 0)
					require.NoError(t, err)
					defer l.Close()
					x := on(t, backend.Dev, dt, kerneltest.Normal(uint64(rows), rows*f.in))
					if rows%2 == 0 {
						x = kerneltest.PutFloats(t, backend, dt, values(t, x)).View
					}
					first := values(t, on(t, backend.Dev, to, kerneltest.Normal(3, rows*f.out)))
					want, bound := f.product(rows, values(t, x), elements, first, beta)
					if beta == 0 {
						first[0] = float32(math.NaN())
					}
					rounding := float64(f.in/8+10) * 0x1p-24
					if !l.few(rows, on(t, backend.Dev, to, first), x, beta) {
						require.Greater(t, rows, w.fewRows())
						rounding += 2*float64(f.in+3)*0x1p-24 + roundings[dt] // of MatMul, and of tiles
					}
					var again []float32
					for range 2 {
						y := kerneltest.PutFloats(t, backend, to, first)
						require.NoError(t, l.Forward(y.View, x, beta))
						got := y.Get()
						for i, v := range got {
							most := rounding * bound[i]
							most += roundings[to]*(math.Abs(want[i])+most) + 0x1p-25
							require.InDelta(t, want[i], float64(v), most, "%v to %v, %d rows, beta %v: element %d", dt, to, rows, beta, i)
						}
						if again != nil {
							sameBits(t, again, got)
						}
						again = got
					}
				}
			})
		}
	}
}

// TestForwardFewManyOutputs: blocks of threads take more outputs when they are done.
//
//check:in ordered
//check:not checked
func TestForwardFewManyOutputs(t *testing.T) {
	const out, in = 1<<15 + 21, 32
	f := fewWeight{out, in, Options{Block: 32}}
	for _, backend := range backends(t) {
		t.Run(backend.Name, func(t *testing.T) {
			w, err := NewWeight(on(t, backend.Dev, snug.F32, kerneltest.Normal(1, out*in)), []int{out, in}, f.opt)
			require.NoError(t, err)
			defer w.Close()
			whole := on(t, backend.Dev, snug.F32, make([]float32, w.Len()))
			require.NoError(t, w.Dequantize(whole))
			l, err := NewLinear(w, snug.F32, 0)
			require.NoError(t, err)
			defer l.Close()
			x := kerneltest.Normal(2, in)
			y := kerneltest.PutFloats(t, backend, snug.F32, make([]float32, out))
			require.NoError(t, l.Forward(y.View, on(t, backend.Dev, snug.F32, x), 0))
			want, bound := f.product(1, x, values(t, whole), nil, 0)
			for i, v := range y.Get() {
				require.InDelta(t, want[i], float64(v), (in/8+10)*0x1p-24*bound[i], "output %d", i)
			}
		})
	}
}

// TestForwardFewPlacesErrors: what products refuse is refused on every device.
//
//check:in tiers arm64
func TestForwardFewBackendsErrors(t *testing.T) {
	for _, backend := range backends(t) {
		t.Run(backend.Name, func(t *testing.T) {
			w, err := NewWeight(on(t, backend.Dev, snug.F32, kerneltest.Normal(1, 64*64)), []int{64, 64}, Options{})
			require.NoError(t, err)
			l, err := NewLinear(w, snug.F32, 0)
			require.NoError(t, err)
			defer l.Close()
			x, y := on(t, backend.Dev, snug.F32, kerneltest.Normal(2, 64)), on(t, backend.Dev, snug.F32, make([]float32, 64))
			require.ErrorIs(t, l.Forward(x, x, 0), snug.ErrConfig)
			require.ErrorIs(t, l.Forward(y, x, float32(math.Inf(1))), snug.ErrConfig)
			require.NoError(t, w.Close())
			require.Error(t, l.Forward(y, x, 0))
			sameBits(t, make([]float32, 64), values(t, y))
		})
	}
}
