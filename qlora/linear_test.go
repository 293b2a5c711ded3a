package qlora

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// matrix multiplies in float64: c[i,j] = Σ a(i,k)·b(k,j), with their rounding bound.
func matrix(m, n, k int, a, b func(i, j int) float64) (c, bound []float64) {
	c, bound = make([]float64, m*n), make([]float64, m*n)
	for i := range m {
		for j := range n {
			for l := range k {
				c[i*n+j] += a(i, l) * b(l, j)
				bound[i*n+j] += math.Abs(a(i, l) * b(l, j))
			}
		}
	}
	return c, bound
}

func near(t *testing.T, want, bound []float64, got []float32, rounding float64, what string) {
	require.Len(t, got, len(want))
	for i := range want {
		require.InDelta(t, want[i], float64(got[i]), rounding*(bound[i]+math.Abs(want[i]))+1e-6, "%s: element %d", what, i)
	}
}

// values returns what a device holds as float32.
func values(t *testing.T, v snug.View) []float32 {
	host, _, err := snug.MakeView(snug.CPU(), v.DType(), v.Len())
	require.NoError(t, err)
	require.NoError(t, snug.Copy(host, v))
	x := make([]float32, v.Len())
	half.Load(x, host, 0)
	return x
}

// on returns a vector of type dt on a device.
func on(t *testing.T, dev *snug.Device, dt snug.DType, x []float32) snug.View {
	host, _, err := snug.MakeView(snug.CPU(), dt, len(x))
	require.NoError(t, err)
	half.Store(host, 0, x)
	v, free, err := snug.MakeView(dev, dt, len(x))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, free()) })
	require.NoError(t, snug.Copy(v, host))
	return v
}

func backends(t *testing.T) []kerneltest.Backend {
	return kerneltest.Backends(t)[1:] // slices are arrays to a Linear
}

// TestLinear compares with products by the whole weight, for tiles that begin within
// blocks.
func TestLinear(t *testing.T) {
	const rows = 5
	for _, backend := range backends(t) {
		for _, tc := range []struct {
			out, in int
			opt     Options
			tile    int
		}{
			{37, 48, Options{Block: 64, Single: true}, 200},
			{37, 48, Options{Block: 64, Single: true}, 0},
			{9, 7, Options{Type: FP4, Block: 32, Single: true}, 1},
			{70, 600, Options{Block: 32}, 3000}, // more than 256 blocks
			{1, 1, Options{}, 1},
			{37, 150, Options{Type: FP8}, 500}, // no loops over codes
			{9, 7, Options{Type: INT8}, 20},
			{70, 60, Options{Type: FP8E5M2, Scales: ByTensor}, 0},
		} {
			for dt, rounding := range map[snug.DType]float64{snug.F32: 1e-6, snug.BF16: 1.0 / 256} {
				t.Run(fmt.Sprintf("%s/%v/%dx%d/%d", backend.Name, dt, tc.out, tc.in, tc.tile), func(t *testing.T) {
					w, err := NewWeight(on(t, backend.Dev, snug.F32, kerneltest.Normal(1, tc.out*tc.in)), []int{tc.out, tc.in}, tc.opt)
					require.NoError(t, err)
					defer w.Close()
					whole := on(t, backend.Dev, dt, make([]float32, w.Len()))
					require.NoError(t, w.Dequantize(whole))
					full := values(t, whole)
					l, err := NewLinear(w, dt, tc.tile)
					require.NoError(t, err)
					defer l.Close()
					require.LessOrEqual(t, l.Bytes(), int64(dt.Size()*w.Len()))

					x, start := on(t, backend.Dev, dt, kerneltest.Normal(2, rows*tc.in)), kerneltest.Normal(3, rows*tc.out)
					xs := values(t, x)
					y := on(t, backend.Dev, snug.F32, start)
					require.NoError(t, l.Forward(y, x, 0.5))
					want, bound := matrix(rows, tc.out, tc.in,
						func(i, k int) float64 { return float64(xs[i*tc.in+k]) }, func(k, j int) float64 { return float64(full[j*tc.in+k]) })
					for i := range want {
						want[i] += 0.5 * float64(start[i])
					}
					near(t, want, bound, values(t, y), 1e-6, "forward")

					dy := on(t, backend.Dev, dt, start)
					ds := values(t, dy)
					dx := on(t, backend.Dev, dt, xs)
					require.NoError(t, l.Backward(dx, dy, 1))
					want, bound = matrix(rows, tc.in, tc.out,
						func(i, k int) float64 { return float64(ds[i*tc.out+k]) }, func(k, j int) float64 { return float64(full[k*tc.in+j]) })
					for i := range want {
						want[i] += float64(xs[i])
					}
					near(t, want, bound, values(t, dx), 2*rounding, "backward")
				})
			}
		}
	}
}

// TestLinearIsWhole: the size of tiles does not change a bit, and a call allocates
// nothing.
func TestLinearIsWhole(t *testing.T) {
	const rows, out, in = 3, 64, 96
	w, err := NewWeight(kerneltest.Normal(1, out*in), []int{out, in}, Options{})
	require.NoError(t, err)
	x := snug.ViewOf(kerneltest.Normal(2, rows*in))
	var first []float32
	for _, tile := range []int{out * in, 1000, in, 1} {
		l, err := NewLinear(w, snug.F32, tile)
		require.NoError(t, err)
		y := make([]float32, rows*out)
		require.NoError(t, l.Forward(snug.ViewOf(y), x, 0))
		if first == nil {
			first = y
		}
		sameBits(t, first, y)
		kerneltest.NoAllocs(t, func() { _ = l.Forward(snug.ViewOf(y), x, 0) })
	}
}

func TestLinearErrors(t *testing.T) {
	w, err := NewWeight(kerneltest.Normal(1, 64*32), []int{64, 32}, Options{})
	require.NoError(t, err)
	flat, err := NewWeight(kerneltest.Normal(1, 64), []int{64}, Options{})
	require.NoError(t, err)
	_, err = NewLinear(flat, snug.F32, 0)
	require.ErrorIs(t, err, snug.ErrShape)
	_, err = NewLinear(w, snug.U8, 0)
	require.ErrorIs(t, err, snug.ErrDType)
	_, err = NewLinear(w, snug.F32, -1)
	require.ErrorIs(t, err, snug.ErrConfig)
	l, err := NewLinear(w, snug.F32, 0)
	require.NoError(t, err)
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	require.ErrorIs(t, l.Forward(v(64), v(33), 0), snug.ErrShape)
	require.ErrorIs(t, l.Forward(v(65), v(32), 0), snug.ErrShape)
	require.ErrorIs(t, l.Backward(v(31), v(64), 0), snug.ErrShape)
	require.ErrorIs(t, l.Forward(v(64), snug.ViewOf(make([]snug.BFloat16, 32)), 0), snug.ErrDType)
	require.NoError(t, l.Forward(v(0), v(0), 0))
}

// Linears of several weights share a tile, which grows to the largest, and give the same bits.
func TestShare(t *testing.T) {
	shapes := [][]int{{3, 64}, {40, 200}, {40, 200}, {7, 33}}
	var all []*Linear
	for i, shape := range shapes {
		w, err := NewWeight(kerneltest.Normal(uint64(i), shape[0]*shape[1]), shape, Options{})
		require.NoError(t, err)
		l, err := NewLinear(w, snug.F32, 600)
		require.NoError(t, err)
		if i > 0 {
			own := l
			l, err = all[0].Share(w)
			require.NoError(t, err)
			defer func() { require.NoError(t, own.Close()) }()
		}
		all = append(all, l)
	}
	for range 2 {
		for i, l := range all {
			const rows = 20
			own, err := NewLinear(l.w, snug.F32, 600)
			require.NoError(t, err)
			x, want, got := kerneltest.Normal(9, rows*l.in), make([]float32, rows*l.out), make([]float32, rows*l.out)
			require.NoError(t, own.Forward(snug.ViewOf(want), snug.ViewOf(x), 0))
			require.NoError(t, l.Forward(snug.ViewOf(got), snug.ViewOf(x), 0))
			require.Equal(t, want, got, shapes[i])
			require.Equal(t, all[0].Bytes(), l.Bytes())
		}
	}
	_, err := all[0].Share(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
	flat, err := NewWeight(make([]float32, 8), []int{8}, Options{})
	require.NoError(t, err)
	_, err = all[0].Share(flat)
	require.ErrorIs(t, err, snug.ErrShape)
	require.NoError(t, all[1].Close())
	require.NoError(t, all[2].Forward(snug.ViewOf(make([]float32, 40)), snug.ViewOf(make([]float32, 200)), 0))
	require.NoError(t, all[0].Close())
	require.ErrorIs(t, all[2].Forward(snug.ViewOf(make([]float32, 40)), snug.ViewOf(make([]float32, 200)), 0), snug.ErrConfig)
	require.NoError(t, all[0].Close())
}
