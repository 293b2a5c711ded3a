package half

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// nearest8 returns the code of the number that is nearest to x among values, ascending from code 0, of two as near the even one.
func nearest8(x float64, values []float64) uint8 {
	best := 0
	for c, v := range values {
		near, nearer := math.Abs(v-x), math.Abs(values[best]-x)
		if near < nearer || near == nearer && c%2 == 0 {
			best = c
		}
	}
	return uint8(best)
}

// edges8 are float32 at, next to and between the numbers of a type and their midpoints, and special ones.
func edges8(values []float64) []float32 {
	x := []float32{float32(math.Inf(1)), math.Float32frombits(0x7f800001), math.Float32frombits(0x7fffffff), math.MaxFloat32, 1e-45, 0x1p-126}
	for i, v := range values {
		for _, at := range []float64{v, v + (values[min(i+1, len(values)-1)]-v)/2} {
			f := float32(at)
			x = append(x, f, math.Nextafter32(f, 0), math.Nextafter32(f, 1e9))
		}
	}
	for _, v := range x {
		x = append(x, float32(math.Copysign(float64(v), -1)), math.Float32frombits(math.Float32bits(v)^1<<31))
	}
	return x
}

// TestFloat8 compares all tiers with the definition at every code and at every edge, for every length.
func TestFloat8(t *testing.T) {
	type conversions[T snug.Float8E4M3 | snug.Float8E5M2] struct {
		widen  func(k *Kernels8) func([]float32, []T)
		narrow func(k *Kernels8) func([]T, []float32)
		value  func(T) float32
		top    int // the largest number
		over   uint8
	}
	e4m3 := conversions[snug.Float8E4M3]{
		func(k *Kernels8) func([]float32, []snug.Float8E4M3) { return k.E4M3ToF32 }, func(k *Kernels8) func([]snug.Float8E4M3, []float32) { return k.F32ToE4M3 },
		snug.Float8E4M3.Float32, 0x7e, 0x7e,
	}
	e5m2 := conversions[snug.Float8E5M2]{
		func(k *Kernels8) func([]float32, []snug.Float8E5M2) { return k.E5M2ToF32 }, func(k *Kernels8) func([]snug.Float8E5M2, []float32) { return k.F32ToE5M2 },
		snug.Float8E5M2.Float32, 0x7b, 0x7c,
	}
	t.Run("e4m3", func(t *testing.T) { float8(t, e4m3.widen, e4m3.narrow, e4m3.value, e4m3.top, e4m3.over) })
	t.Run("e5m2", func(t *testing.T) { float8(t, e5m2.widen, e5m2.narrow, e5m2.value, e5m2.top, e5m2.over) })
}

func float8[T snug.Float8E4M3 | snug.Float8E5M2](t *testing.T, widen func(k *Kernels8) func([]float32, []T), narrow func(k *Kernels8) func([]T, []float32),
	value func(T) float32, top int, over uint8,
) {
	values := make([]float64, top+1)
	for c := range values {
		values[c] = float64(value(T(c)))
	}
	require.True(t, slices.IsSorted(values))
	all := make([]T, 256)
	for c := range all {
		all[c] = T(c)
	}
	edges := edges8(values)
	want := make([]T, len(edges))
	beyond := (3*values[top] - values[top-1]) / 2 // where the next number would begin
	for i, x := range edges {
		size := math.Abs(float64(x))
		c := nearest8(size, values)
		switch {
		case x != x:
			c = 0x7f
		case over > uint8(top) && size >= beyond:
			c = over
		}
		want[i] = T(c | uint8(math.Float32bits(x)>>24&0x80))
	}
	for tier, k := range Registry8.All() {
		for off := range 18 {
			n := len(all) - off
			got, back := slices.Repeat([]float32{77}, n+20), slices.Repeat([]T{77}, n+20)
			widen(k)(got[:n], all[off:])
			for i, c := range all[off:] {
				require.Equal(t, math.Float32bits(value(c)), math.Float32bits(got[i]), "%v: code %#x", tier, c)
			}
			narrow(k)(back[:n], got[:n])
			for i, c := range all[off:] {
				if got[i] == got[i] {
					require.Equal(t, c, back[i], "%v", tier)
				}
			}
			require.Equal(t, slices.Repeat([]float32{77}, 20), got[n:])
			require.Equal(t, slices.Repeat([]T{77}, 20), back[n:])
		}
		got := make([]T, len(edges))
		narrow(k)(got, edges)
		for i, x := range edges {
			require.Equal(t, want[i], got[i], "%v: %g (%#x)", tier, x, math.Float32bits(x))
		}
		kerneltest.NoAllocs(t, func() { narrow(k)(got, edges) })
	}
}
