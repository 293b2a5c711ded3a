package fused

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

//check:in tiers arm64
func TestRotaryAgainstDefinition(t *testing.T) {
	const context = 40
	positions := []int32{3, 0, 39, 3, 17}
	for _, c := range []RotaryOptions{
		{Heads: 1, Dim: 2}, {Heads: 3, Dim: 64}, {Heads: 2, Dim: 38, Turned: 38}, {Heads: 2, Dim: 70, Turned: 22, Stride: 147},
	} {
		for _, c.Interleaved = range []bool{false, true} {
			for _, dt := range floatTypes {
				t.Run(fmt.Sprintf("%+v %v", c, dt), func(t *testing.T) {
					kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) { checkRotary(t, p, dt, c, context, positions) })
				})
			}
		}
	}
}

func checkRotary(t *testing.T, p kerneltest.Backend, dt snug.DType, c RotaryOptions, context int, positions []int32) {
	const base = 10000
	check := &checks{op: "test"}
	r := c.resolve(check)
	require.NoError(t, check.err)
	angles := make([]float32, context*r.Turned)
	require.NoError(t, RotaryAngles(angles, r.Turned, base))
	x := normals(newRand(1), dt, (len(positions)-1)*r.Stride+r.Heads*r.Dim, 0, 1)
	want, bound := float64s(x), make([]float64, len(x))
	half := r.Turned / 2
	for row, pos := range positions {
		for h := range r.Heads {
			for i := range half {
				a, b := i, i+half
				if c.Interleaved {
					a, b = 2*i, 2*i+1
				}
				a, b = a+row*r.Stride+h*r.Dim, b+row*r.Stride+h*r.Dim
				sin, cos := math.Sincos(float64(pos) * math.Pow(base, -2*float64(i)/float64(r.Turned)))
				want[a], want[b] = want[a]*cos-want[b]*sin, want[b]*cos+want[a]*sin
				for _, at := range []int{a, b} {
					d := 4 * u * (math.Abs(float64(x[a])) + math.Abs(float64(x[b])))
					bound[at] = d + roundoff(dt, math.Abs(want[at])+d)
				}
			}
		}
	}
	px, pa := kerneltest.PutFloats(t, p, dt, x), kerneltest.Put(t, p, angles)
	require.NoError(t, Rotary(px.View, pa.View, positions, c))
	requireClose(t, "x", want, bound, px.Get())
	if dt != snug.F32 {
		return
	}
	require.NoError(t, RotaryBackward(px.View, pa.View, positions, c))
	for i, back := range px.Get() {
		require.InDelta(t, x[i], back, 1e-6)
	}
}

func TestRotaryAnglesErrors(t *testing.T) {
	require.ErrorIs(t, RotaryAngles(make([]float32, 4), 3, 10), snug.ErrConfig)
	require.ErrorIs(t, RotaryAngles(make([]float32, 4), 0, 10), snug.ErrConfig)
	require.ErrorIs(t, RotaryAngles(make([]float32, 5), 4, 10), snug.ErrShape)
	for _, base := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		require.ErrorIs(t, RotaryAngles(make([]float32, 4), 4, base), snug.ErrConfig)
	}
}

// Turning by one angle and by another is turning by their sum, and the scores of
// queries and keys depend on the distance of their positions only.
func distanceOnly(t *rapid.T) {
	c := RotaryOptions{Heads: 1, Dim: 2 * rapid.IntRange(1, 40).Draw(t, "pairs"), Interleaved: rapid.Bool().Draw(t, "interleaved")}
	angles := make([]float32, 64*c.Dim)
	require.NoError(t, RotaryAngles(angles, c.Dim, 100))
	rng := newRand(rapid.Uint64().Draw(t, "seed"))
	q, k := normals(rng, snug.F32, c.Dim, 0, 1), normals(rng, snug.F32, c.Dim, 0, 1)
	score := func(i, j int32) (s float64) {
		a, b := append([]float32(nil), q...), append([]float32(nil), k...)
		require.NoError(t, Rotary(a, angles, []int32{i}, c))
		require.NoError(t, Rotary(b, angles, []int32{j}, c))
		for n := range a {
			s += float64(a[n]) * float64(b[n])
		}
		return s
	}
	i, j := rapid.Int32Range(0, 31).Draw(t, "i"), rapid.Int32Range(0, 31).Draw(t, "j")
	shift := rapid.Int32Range(0, 32).Draw(t, "shift")
	require.InDelta(t, score(i, j), score(i+shift, j+shift), 1e-5*float64(c.Dim))
}

func TestDistanceOnly(t *testing.T) { rapid.Check(t, distanceOnly) }
func FuzzDistanceOnly(f *testing.F) { f.Fuzz(rapid.MakeFuzz(distanceOnly)) }
