package amp

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/measure"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

//check:in ordered
//check:not checked
func TestMeasure(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			for _, skip := range skips {
				x := roundAll(dt, kerneltest.Uniform(3, skip+2*measure.MinPiece+1))
				v := kerneltest.PutFloats(t, p, dt, x)
				grads := kerneltest.Walk(kerneltest.Named{Name: "x", View: kerneltest.After(t, v.View, skip)})
				stats, err := Measure(grads)
				require.NoError(t, err)
				require.InEpsilon(t, norm(x[skip:]), stats.Norm, 1e-12)
				require.Equal(t, x, v.Get(), "nothing is written")
				require.NoError(t, stats.Err())
			}
		}
	})
}

// norm is the definition.
func norm(x []float32) float64 {
	sum := 0.0
	for _, x := range x {
		sum += float64(x) * float64(x)
	}
	return math.Sqrt(sum)
}

// TestMeasureExtremes has squares that no float32 holds.
func TestMeasureExtremes(t *testing.T) {
	stats, err := Measure(kerneltest.Walk())
	require.NoError(t, err)
	require.Equal(t, Stats{}, stats)
	rng := rand.New(rand.NewPCG(5, 1))
	anything := make([]float32, 5000)
	for i := range anything {
		if x := math.Float32frombits(rng.Uint32()); x-x == 0 {
			anything[i] = x
		}
	}
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, x := range [][]float32{
			{0, 0}, {0x1p-149}, {0x1p-149, 0, 0x1p-140, 0x1.8p-126}, {math.MaxFloat32, math.MaxFloat32, 0, 0x1p-149},
			{0x1p-60, 1}, {1, 0x1p-20}, {1, -inf}, {1, nan}, {nan, inf}, anything, anything[:2501],
		} {
			grads := kerneltest.Walk(kerneltest.Named{Name: "x", View: kerneltest.Put(t, p, x).View}, kerneltest.Named{Name: "x again", View: kerneltest.Put(t, p, x).View})
			stats, err := Measure(grads)
			require.NoError(t, err)
			switch want := math.Sqrt2 * norm(x); {
			case math.IsNaN(want) || math.IsInf(want, 0):
				require.Equal(t, fmt.Sprint(want), fmt.Sprint(stats.Norm))
			default:
				require.InDelta(t, want, stats.Norm, 1e-13*want, "%.9g", x[:min(4, len(x))])
			}
		}
	})
}

// TestMeasureDevices compares a walk over gradients of all types and many
// lengths with that on the CPU.
func TestMeasureDevices(t *testing.T) {
	stats := func(t *testing.T, p kerneltest.Backend, bad int) Stats {
		var grads []kerneltest.Named
		for i, n := range []int{3, 0, 5000, 1, 2048, 9001} {
			x := kerneltest.Uniform(uint64(i), n)
			if n == bad {
				x[n/2], x[n-1], x[n/3] = nan, -inf, inf
			}
			grads = append(grads, kerneltest.Named{Name: fmt.Sprint(n), View: kerneltest.PutFloats(t, p, floats[i%3], x).View})
		}
		found, err := Measure(kerneltest.Walk(grads...))
		require.NoError(t, err)
		return found
	}
	for _, bad := range []int{-1, 5000, 9001} {
		want := stats(t, kerneltest.Backend{}, bad)
		kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
			got := stats(t, p, bad)
			if bad < 0 {
				require.InEpsilon(t, want.Norm, got.Norm, 1e-12)
			}
			require.Equal(t, want.Elements, got.Elements)
			require.Equal(t, want.NonFinite, got.NonFinite)
			sameOverflows(t, want.Overflows, got.Overflows)
		})
	}
}

// sameOverflows compares with all NaNs equal.
func sameOverflows(t *testing.T, want, got []snug.NonFinite) {
	require.Len(t, got, len(want))
	for i, w := range want {
		g := got[i]
		if w.Value != w.Value && g.Value != g.Value {
			w.Value, g.Value = 0, 0
		}
		require.Equal(t, w, g)
	}
}

// TestStatsMadeByHand: statistics that name no gradient say how many values are bad.
func TestStatsMadeByHand(t *testing.T) {
	require.NoError(t, Stats{Elements: 9}.Err())
	err := Stats{Elements: 9, NonFinite: 3}.Err()
	require.ErrorIs(t, err, snug.ErrNonFinite)
	require.ErrorContains(t, err, "3 of 9 elements are not finite")
}

func TestMeasureNonFinite(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			a := kerneltest.PutFloats(t, p, dt, []float32{1, 2})
			b := kerneltest.PutFloats(t, p, dt, []float32{1, nan, inf})
			c := kerneltest.PutFloats(t, p, dt, []float32{1, -inf})
			stats, err := Measure(kerneltest.Walk(kerneltest.Named{Name: "a", View: a.View}, kerneltest.Named{Name: "b", View: b.View}, kerneltest.Named{Name: "c", View: c.View}))
			require.NoError(t, err)
			sameOverflows(t, []snug.NonFinite{{Name: "b", Count: 2, Index: 1, Value: nan, Micro: -1}, {Name: "c", Count: 1, Index: 1, Value: -inf, Micro: -1}}, stats.Overflows)
			require.ErrorIs(t, stats.Err(), snug.ErrNonFinite)
			require.ErrorContains(t, stats.Err(), "3 of 7 elements in 2 gradients are not finite, first b[1] = NaN, the first of 2")
		}
	})
	for _, bad := range []struct {
		grads iter.Seq2[string, snug.View]
		want  error
	}{
		{nil, snug.ErrConfig},
		{kerneltest.Walk(kerneltest.Named{Name: "x", View: snug.SliceView([]uint8{1})}), snug.ErrDType},
		{kerneltest.Once(kerneltest.Slice("x", []float32{1})), snug.ErrConfig},
		{kerneltest.Walk(kerneltest.Named{Name: "x", View: kerneltest.Closed(t, snug.F16, 2)}), snug.ErrDevice},
	} {
		_, err := Measure(bad.grads)
		require.ErrorIs(t, err, bad.want)
	}
}

//check:in late nan flush
func TestClip(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			for _, skip := range skips {
				x := append(append(make([]float32, skip), special...), kerneltest.Uniform(4, measure.MinPiece+3)...)
				v := kerneltest.PutFloats(t, p, dt, x)
				grads := kerneltest.Walk(kerneltest.Named{Name: "x", View: kerneltest.After(t, v.View, skip)})
				coef := float32(2 / (8 + 1e-6))
				require.Equal(t, coef, ClipCoef(8, 2))
				stats, err := Clip(grads, 8, 2)
				require.NoError(t, err)
				want := roundAll(dt, x)
				for i := range want {
					want[i] = round(dt, want[i]*coef)
				}
				requireSame(t, want, v.Get(), dt, skip)
				again, err := Clip(grads, 1, 2)
				require.NoError(t, err)
				requireSame(t, want, v.Get(), dt, skip)
				sameStats(t, stats, again)
				bad := 0
				for _, x := range want {
					if x-x != 0 {
						bad++
					}
				}
				require.Equal(t, bad, stats.NonFinite)
			}
		}
	})
}

// sameStats compares with all NaNs equal.
func sameStats(t *testing.T, want, got Stats) {
	require.Equal(t, math.Float64bits(want.Norm), math.Float64bits(got.Norm))
	sameOverflows(t, want.Overflows, got.Overflows)
	want.Norm, got.Norm, want.Overflows, got.Overflows = 0, 0, nil, nil
	require.Equal(t, want, got)
}

func TestClipValue(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dt := range floats {
			for _, skip := range skips {
				for _, limit := range []float32{0, 0.3, 1.0 / 3} {
					x := roundAll(dt, append(append(make([]float32, skip), special...), kerneltest.Uniform(4, measure.MinPiece+3)...))
					v := kerneltest.PutFloats(t, p, dt, x)
					stats, err := ClipValue(kerneltest.Walk(kerneltest.Named{Name: "x", View: kerneltest.After(t, v.View, skip)}), limit)
					require.NoError(t, err)
					bad, squares := 0, 0.0
					for i := skip; i < len(x); i++ {
						switch {
						case x[i]-x[i] != 0:
							x[i] = nan
							bad++
						case x[i] > limit:
							x[i] = round(dt, limit)
						case x[i] < -limit:
							x[i] = round(dt, -limit)
						}
						squares += float64(x[i]) * float64(x[i])
					}
					requireSame(t, x, v.Get(), dt, skip)
					require.Equal(t, bad, stats.NonFinite, "neither NaNs nor infinities are hidden")
					require.Equal(t, bad, stats.Overflows[0].Count)

					clean := kerneltest.PutFloats(t, p, dt, []float32{1, -1, 0.25})
					stats, err = ClipValue(kerneltest.Walk(kerneltest.Named{Name: "x", View: clean.View}), limit)
					require.NoError(t, err)
					require.NoError(t, stats.Err())
					require.InDelta(t, norm(clean.Get()), stats.Norm, 1e-12)
				}
			}
		}
	})
	x := []float32{3, -4}
	for _, limit := range []float32{-1, nan, inf} {
		_, err := ClipValue(kerneltest.Walk(kerneltest.Slice("x", x)), limit)
		require.ErrorIs(t, err, snug.ErrConfig)
	}
	_, err := ClipValue(nil, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, []float32{3, -4}, x)
}

func TestClipErrors(t *testing.T) {
	x := []float32{3, 4}
	tests := []struct {
		name          string
		norm, maxNorm float64
		want          error
	}{
		{"NaN norm", math.NaN(), 1, snug.ErrNonFinite},
		{"infinite norm", math.Inf(1), 1, snug.ErrNonFinite},
		{"negative norm", -5, 1, snug.ErrConfig},
		{"negative maxNorm", 5, -1, snug.ErrConfig},
		{"NaN maxNorm", 5, math.NaN(), snug.ErrConfig},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Clip(kerneltest.Walk(kerneltest.Slice("x", x)), test.norm, test.maxNorm)
			require.ErrorIs(t, err, test.want)
			require.True(t, math.IsNaN(float64(ClipCoef(test.norm, test.maxNorm))))
			require.Equal(t, []float32{3, 4}, x)
		})
	}
	_, err := Clip(kerneltest.Walk(kerneltest.Slice("x", x), kerneltest.Named{Name: "bytes", View: snug.SliceView([]uint8{1})}), 5, 1)
	require.ErrorIs(t, err, snug.ErrDType)
	_, err = Clip(nil, 5, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, []float32{3, 4}, x)
	_, err = Clip(kerneltest.Once(kerneltest.Slice("x", x)), 5, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
}

func TestClipCoef(t *testing.T) {
	require.Equal(t, float32(1), ClipCoef(0, 1))
	require.Equal(t, float32(1), ClipCoef(5, math.Inf(1)))
	require.Equal(t, float32(0), ClipCoef(5, 0))
	require.Equal(t, float32(0.5), ClipCoef(2-1e-6, 1))
}

func clipProperty(t *rapid.T) {
	x := rapid.SliceOfN(rapid.Float32Range(-1e6, 1e6), 1, 200).Draw(t, "x")
	limit := rapid.Float64Range(1e-3, 1e6).Draw(t, "limit")
	grads := kerneltest.Walk(kerneltest.Slice("x", x))
	before, err := Measure(grads)
	require.NoError(t, err)
	_, err = Clip(grads, before.Norm, limit)
	require.NoError(t, err)
	after, err := Measure(grads)
	require.NoError(t, err)
	require.LessOrEqual(t, after.Norm, min(before.Norm, limit)*(1+1e-6))
}

//check:in tiers
func TestClipProperty(t *testing.T) { rapid.Check(t, clipProperty) }
func FuzzClip(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(clipProperty)) }
