package qlora

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestMerge adds adapters up, has the result in 4 bits again, and measures that.
//
//check:in ordered race
//check:not checked
func TestMerge(t *testing.T) {
	const out, in, rank = 70, 600, 3
	for _, backend := range backends(t) {
		for k, opt := range []Options{{}, {Type: FP4, Block: 32, Single: true}, {}} {
			w, err := NewWeight(on(t, backend.Dev, snug.F32, kerneltest.Normal(1, out*in)), []int{out, in}, opt)
			require.NoError(t, err)
			whole := on(t, backend.Dev, snug.F32, make([]float32, out*in))
			require.NoError(t, w.Dequantize(whole))
			full, a, b := values(t, whole), kerneltest.Normal(2, rank*in), kerneltest.Normal(3, out*rank)
			l := LoRA{In: in, Out: out, Rank: rank, Scale: 0.5, A: on(t, backend.Dev, snug.F32, a), B: on(t, backend.Dev, snug.F32, b)}
			want := make([]float64, out*in)
			for o := range out {
				for i := range in {
					want[o*in+i] = float64(full[o*in+i])
					for k := range rank {
						want[o*in+i] += 0.5 * float64(b[o*rank+k]) * float64(a[k*in+i])
					}
				}
			}
			if k == 2 {
				l.Magnitude = on(t, backend.Dev, snug.F32, kerneltest.Normal(4, out))
				for o, m := range values(t, l.Magnitude) {
					row := want[o*in : (o+1)*in]
					norm := math.Sqrt(dot(row, row))
					for i := range row {
						row[i] *= float64(m) / norm
					}
				}
			}
			for dt, rounding := range map[snug.DType]float64{snug.F32: 1e-6, snug.BF16: 1.0 / 256} {
				dst := on(t, backend.Dev, dt, make([]float32, out*in))
				require.NoError(t, errorOf(Merge(dst, w, &l, 5000)))
				got := values(t, dst)
				for i := range want {
					require.InDelta(t, want[i], float64(got[i]), rounding*math.Abs(want[i])+1e-5, "%v: element %d", dt, i)
				}

				again, err := NewWeight(dst, []int{out, in}, opt)
				require.NoError(t, err)
				decoded := on(t, backend.Dev, snug.F32, make([]float32, out*in))
				require.NoError(t, again.Dequantize(decoded))
				var e Deviation
				squares := 0.0
				for i, v := range values(t, decoded) {
					d := float64(got[i]) - float64(v)
					e.RMS += d * d
					squares += float64(got[i]) * float64(got[i])
					e.Max = max(e.Max, math.Abs(d))
				}
				e.Relative = math.Sqrt(e.RMS / squares)
				e.RMS = math.Sqrt(e.RMS / (out * in))
				measured, err := again.Deviation(dst)
				require.NoError(t, err)
				require.InEpsilon(t, e.RMS, measured.RMS, 1e-9)
				require.InEpsilon(t, e.Relative, measured.Relative, 1e-9)
				require.Equal(t, e.Max, measured.Max)
				require.Less(t, measured.Relative, 0.15, "4 bits are this good")
				require.NoError(t, again.Close())
			}
			exact, err := w.Deviation(whole)
			require.NoError(t, err)
			require.Zero(t, exact)
			require.NoError(t, w.Close())
		}
	}
}

// errorOf returns the error of a merge.
func errorOf(_ amp.LostUpdates, err error) error { return err }

// TestMergeCountsAndRefuses merges what rounding takes, and what the type cannot hold, by both kinds of matrices.
//
//check:in race
func TestMergeCountsAndRefuses(t *testing.T) {
	const out, in = 48, 32
	fill := func(n int, x float32) []float32 {
		v := make([]float32, n)
		for i := range v {
			v[i] = x
		}
		return v
	}
	for _, backend := range backends(t) {
		for name, test := range map[string]struct {
			dt            snug.DType
			base, delta   float32
			updates, lost int64
			text          string
		}{
			"float16 overflows":              {dt: snug.F16, base: 1, delta: 70000, text: "of the sum is 70001, and f16 goes up to 65504: merge into a type with a larger range"},
			"bfloat16 holds it":              {dt: snug.BF16, base: 1, delta: 70000, updates: out * in},
			"float32 overflows":              {dt: snug.F32, base: 1, delta: float32(math.Inf(1)), text: "the adapter has too large values"},
			"the adapter is NaN":             {dt: snug.BF16, base: 1, delta: float32(math.NaN()), text: "the adapter has too large values, or some that are not finite"},
			"bfloat16 rounds everything off": {dt: snug.BF16, base: 1, delta: 0.001, updates: out * in, lost: out * in},
			"float32 keeps it":               {dt: snug.F32, base: 1, delta: 0.001, updates: out * in},
			"no change at all":               {dt: snug.BF16, base: 1, delta: 0},
		} {
			for _, form := range []string{"dense", "dense transposed", "quantized"} {
				t.Run(name+", "+form, func(t *testing.T) {
					l := LoRA{In: in, Out: out, Rank: 1, Scale: 1, A: on(t, backend.Dev, snug.F32, fill(in, 1)), B: on(t, backend.Dev, snug.F32, fill(out, test.delta))}
					dst := on(t, backend.Dev, test.dt, make([]float32, out*in))
					var lost amp.LostUpdates
					var err error
					if form == "quantized" {
						w, made := NewWeight(on(t, backend.Dev, snug.F32, fill(out*in, test.base)), []int{out, in}, Options{Single: true})
						require.NoError(t, made)
						lost, err = Merge(dst, w, &l, 0)
						require.NoError(t, w.Close())
					} else {
						d, made := NewDense(on(t, backend.Dev, test.dt, fill(out*in, test.base)), out, in, form != "dense")
						require.NoError(t, made)
						lost, err = d.Merge(dst, &l)
						require.NoError(t, d.Close())
					}
					if test.text != "" {
						require.ErrorIs(t, err, snug.ErrNonFinite)
						require.ErrorContains(t, err, "element 0 ")
						require.ErrorContains(t, err, test.text)
						return
					}
					require.NoError(t, err)
					require.Equal(t, test.updates, lost.Updates)
					require.Equal(t, test.lost, lost.Lost)
				})
			}
		}
	}
}

//check:in race
func TestMergeErrors(t *testing.T) {
	w, err := NewWeight(kerneltest.Normal(1, 64*32), []int{64, 32}, Options{})
	require.NoError(t, err)
	v := func(n int) snug.View { return snug.ViewOf(make([]float32, n)) }
	l := LoRA{In: 32, Out: 64, Rank: 2, Scale: 1, A: v(64), B: v(128)}
	require.NoError(t, errorOf(Merge(v(64*32), w, &l, 0)))
	require.ErrorIs(t, errorOf(Merge(v(64*31), w, &l, 0)), snug.ErrShape)
	require.ErrorIs(t, errorOf(Merge(v(64*32), w, &l, -1)), snug.ErrConfig)
	require.ErrorIs(t, errorOf(Merge(snug.SliceView(make([]uint8, 64*32)), w, &l, 0)), snug.ErrDType)
	turned := LoRA{In: 64, Out: 32, Rank: 2, Scale: 1, A: v(128), B: v(64)}
	require.ErrorIs(t, errorOf(Merge(v(64*32), w, &turned, 0)), snug.ErrShape)
	l.Scale = 0
	require.ErrorIs(t, errorOf(Merge(v(64*32), w, &l, 0)), snug.ErrConfig)
	_, err = w.Deviation(v(5))
	require.ErrorIs(t, err, snug.ErrShape)
	_, err = w.Deviation(snug.SliceView(make([]uint8, 64*32)))
	require.ErrorIs(t, err, snug.ErrDType)
	require.NoError(t, w.Close())
	_, err = w.Deviation(v(64 * 32))
	require.ErrorIs(t, err, snug.ErrDevice)
}
