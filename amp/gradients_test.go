package amp

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestMeasure(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Place) {
		for _, dt := range floats {
			x := randoms(3, 2*minPiece+1)
			v := kerneltest.PutFloats(t, p, dt, x)
			stats, err := Measure(walk(named{"x", v.View}))
			require.NoError(t, err)
			sum := 0.0
			for _, x := range roundAll(dt, x) {
				sum += float64(x) * float64(x)
			}
			require.InEpsilon(t, math.Sqrt(sum), stats.Norm, 1e-12)
			require.Equal(t, roundAll(dt, x), v.Get(), "nothing is written")
			require.NoError(t, CheckFinite(walk(named{"x", v.View})))
		}
	})
}

func TestMeasureExtremes(t *testing.T) {
	stats, err := Measure(walk())
	require.NoError(t, err)
	require.Equal(t, Stats{}, stats)
	stats, err = Measure(walk(slice("x", []float32{math.MaxFloat32, math.MaxFloat32, 0, 0x1p-149})))
	require.NoError(t, err)
	require.InEpsilon(t, math.MaxFloat32*math.Sqrt2, stats.Norm, 1e-12, "squares do not overflow")
	stats, err = Measure(walk(slice("x", []float32{0x1p-149})))
	require.NoError(t, err)
	require.Equal(t, 0x1p-149, stats.Norm, "nor vanish")
	stats, err = Measure(walk(slice("x", []float32{1, -inf})))
	require.NoError(t, err)
	require.Equal(t, math.Inf(1), stats.Norm)
}

func TestCheckFinite(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Place) {
		for _, dt := range floats {
			a := kerneltest.PutFloats(t, p, dt, []float32{1, 2})
			b := kerneltest.PutFloats(t, p, dt, []float32{1, nan, inf})
			err := CheckFinite(walk(named{"a", a.View}, named{"b", b.View}))
			require.ErrorIs(t, err, snug.ErrNonFinite)
			require.ErrorContains(t, err, "2 of 5 elements, first b[1] = NaN")
		}
	})
	require.ErrorIs(t, CheckFinite(nil), snug.ErrConfig)
	require.ErrorIs(t, CheckFinite(walk(named{"x", snug.SliceView([]uint8{1})})), snug.ErrDType)
	require.ErrorIs(t, CheckFinite(once(slice("x", []float32{1}))), snug.ErrConfig)
	_, err := Measure(walk(named{"x", closed(t, snug.F16, 2)}))
	require.ErrorIs(t, err, snug.ErrDevice)
}

func TestClip(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Place) {
		for _, dt := range floats {
			x := append(randoms(4, minPiece+3), 1e-7, 0)
			v := kerneltest.PutFloats(t, p, dt, x)
			coef, err := Clip(walk(named{"x", v.View}), 8, 2)
			require.NoError(t, err)
			require.Equal(t, float32(2/(8+1e-6)), coef)
			want := roundAll(dt, x)
			for i := range want {
				want[i] = round(dt, want[i]*coef)
			}
			require.Equal(t, want, v.Get())
			coef, err = Clip(walk(named{"x", v.View}), 1, 2)
			require.NoError(t, err)
			require.Equal(t, float32(1), coef)
			require.Equal(t, want, v.Get())
		}
	})
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
			_, err := Clip(walk(slice("x", x)), test.norm, test.maxNorm)
			require.ErrorIs(t, err, test.want)
			require.True(t, math.IsNaN(float64(ClipCoef(test.norm, test.maxNorm))))
			require.Equal(t, []float32{3, 4}, x)
		})
	}
	_, err := Clip(walk(slice("x", x), named{"bytes", snug.SliceView([]uint8{1})}), 5, 1)
	require.ErrorIs(t, err, snug.ErrDType)
	_, err = Clip(nil, 5, 1)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.Equal(t, []float32{3, 4}, x)
	_, err = Clip(once(slice("x", x)), 5, 1)
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
	grads := walk(slice("x", x))
	before, err := Measure(grads)
	require.NoError(t, err)
	_, err = Clip(grads, before.Norm, limit)
	require.NoError(t, err)
	after, err := Measure(grads)
	require.NoError(t, err)
	require.LessOrEqual(t, after.Norm, min(before.Norm, limit)*(1+1e-6))
}

func TestClipProperty(t *testing.T) { rapid.Check(t, clipProperty) }
func FuzzClip(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(clipProperty)) }
