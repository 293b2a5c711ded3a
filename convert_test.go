package snug_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/mat"
	"pgregory.net/rapid"
)

// The named types of a program.
type (
	weights   []float32
	halves    []snug.Float16
	brains    []snug.BFloat16
	theirs16  uint16 // a 16-bit float of another project
	theirs16s []theirs16
)

func TestNamedSlices(t *testing.T) {
	w, h, b := weights{1, 2}, halves{1, 2, 3}, brains{1, 2, 3, 4}
	for _, c := range []struct {
		got, want snug.View
	}{
		{snug.ViewOf(w), snug.ViewOf([]float32(w))}, {snug.ViewOf(h), snug.ViewOf([]snug.Float16(h))},
		{snug.ViewOf(b), snug.ViewOf([]snug.BFloat16(b))}, {snug.SliceView(w), snug.ViewOf([]float32(w))},
		{snug.ViewOf(weights(nil)), snug.ViewOf([]float32(nil))}, {snug.ViewOf(brains{}), snug.ViewOf([]snug.BFloat16{})},
	} {
		require.Equal(t, c.want, c.got)
	}
	require.NoError(t, snug.Copy(w, []float32{5, 6}))
	require.Equal(t, weights{5, 6}, w)
	require.Equal(t, weights{5, 6}, weights(snug.FromSlice(w).Host()))
	only32(t, w)

	dst := make(halves, 2)
	n := 0
	require.Zero(t, testing.AllocsPerRun(100, func() {
		n += snug.ViewOf(w).Len() + snug.ViewOf(h).Len() + snug.ViewOf(b).Len() + snug.ViewOf([]float32(w)).Len()
		if snug.Copy(dst, h[:2]) != nil || snug.FromFloat64(w, []float64{1, 2}) != nil {
			n = -1 << 30
		}
	}))
	require.Positive(t, n)
}

func only32[V snug.Vector32](t *testing.T, v V) { require.Equal(t, snug.F32, snug.ViewOf(v).DType()) }

func TestForeign16(t *testing.T) {
	f := theirs16s{theirs16(snug.ToBFloat16(1.5)), theirs16(snug.ToBFloat16(-2))}
	b := snug.BFloat16s(f)
	require.Equal(t, []snug.BFloat16{snug.ToBFloat16(1.5), snug.ToBFloat16(-2)}, b)
	b[1] = snug.ToBFloat16(3)
	require.Equal(t, theirs16(snug.ToBFloat16(3)), f[1], "the memory is shared")
	require.Equal(t, 2, cap(snug.BFloat16s(f[:2])))
	h := snug.Float16s(f[:1])
	require.Equal(t, uint16(f[0]), h[0].Bits())
	require.Nil(t, snug.BFloat16s(theirs16s(nil)))
	require.Nil(t, snug.Float16s[uint16](nil))
	require.Empty(t, snug.Float16s([]uint16{}))
	require.Zero(t, testing.AllocsPerRun(100, func() { b = snug.BFloat16s(f) }))
}

// TestFromFloat64 compares with the definition: the nearest of all values of the type,
// of two as near the one whose last bit is 0.
func TestFromFloat64(t *testing.T) {
	for name, c := range map[string]struct {
		value   func(code uint16) float64
		convert func(x float64) uint16
		inf     uint16
	}{
		"bf16": {func(c uint16) float64 { return float64(snug.BFloat16(c).Float32()) }, func(x float64) uint16 {
			var d [1]snug.BFloat16
			if snug.FromFloat64(d[:], []float64{x}) != nil {
				return 0xffff
			}
			return uint16(d[0])
		}, 0x7f80},
		"f16": {func(c uint16) float64 { return float64(snug.Float16(c).Float32()) }, func(x float64) uint16 {
			var d [1]snug.Float16
			if snug.FromFloat64(d[:], []float64{x}) != nil {
				return 0xffff
			}
			return d[0].Bits()
		}, 0x7c00},
	} {
		t.Run(name, func(t *testing.T) {
			expect := func(x float64, want uint16) {
				if c.convert(x) != want || c.convert(-x) != want|0x8000 {
					t.Fatalf("%v, want the code %#x, got %#x and %#x", x, want, c.convert(x), c.convert(-x))
				}
			}
			for code := uint16(0); code < c.inf; code++ {
				low, high := c.value(code), c.value(code+1)
				if code+1 == c.inf { // where the next number would be
					high = 2*low - c.value(code-1)
				}
				middle := low + (high-low)/2
				even := code + code&1
				expect(low, code)
				expect(math.Nextafter(low, high), code)
				expect(math.Nextafter(middle, low), code)
				expect(middle, even)
				expect(math.Nextafter(middle, high), code+1)
				expect(math.Nextafter(high, low), code+1)
				// Halfway in float64, but not in a float32 in between.
				expect(middle+(high-low)*0x1p-30, code+1)
				expect(middle-(high-low)*0x1p-30, code)
			}
			expect(math.MaxFloat64, c.inf)
			expect(math.Inf(1), c.inf)
			expect(5e-324, 0)
			require.True(t, math.IsNaN(c.value(c.convert(math.NaN()))))
		})
	}
}

func TestFloat64s(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		rapid.Check(t, func(rt *rapid.T) {
			x := rapid.SliceOfN(rapid.Float64(), 0, 70).Draw(rt, "x")
			if rapid.IntRange(0, 9).Draw(rt, "long") == 0 {
				x = append(x, make([]float64, 40000)...) // more than goes through the host at a time
				x[len(x)-1] = 7
			}
			back := make([]float64, len(x))
			buf := kerneltest.Put(t, p, make([]float32, len(x)))
			require.NoError(t, snug.FromFloat64(buf.View, x))
			require.NoError(t, snug.ToFloat64(back, buf.View))
			for i, got := range buf.Get() {
				if math.Float32bits(float32(x[i])) != math.Float32bits(got) || float64(got) != back[i] {
					rt.Fatalf("element %d: %v became %v and %v", i, x[i], got, back[i])
				}
			}
		})
	})
	h, b, back := make(halves, 2), make(brains, 2), make([]float64, 2)
	require.NoError(t, snug.FromFloat64(h, []float64{1.5, -2}))
	require.NoError(t, snug.ToFloat64(back, h))
	require.Equal(t, []float64{1.5, -2}, back)
	require.NoError(t, snug.FromFloat64(b, []float64{0.25, -3}))
	require.NoError(t, snug.ToFloat64(back, b))
	require.Equal(t, []float64{0.25, -3}, back)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if snug.FromFloat64(h, back) != nil || snug.ToFloat64(back, b) != nil {
			panic("failed")
		}
	}))

	codes := snug.SliceView([]uint8{1, 2})
	require.ErrorIs(t, snug.FromFloat64(codes, back), snug.ErrDType)
	require.ErrorIs(t, snug.ToFloat64(back, codes), snug.ErrDType)
	require.ErrorIs(t, snug.FromFloat64(h, back[:1]), snug.ErrShape)
	require.ErrorIs(t, snug.ToFloat64(nil, h), snug.ErrShape)
	far, err := snug.Open("opaque")
	require.NoError(t, err)
	a, err := snug.Make[float32](far, 2)
	require.NoError(t, err)
	v := a.View()
	require.NoError(t, far.Close())
	require.ErrorIs(t, snug.FromFloat64(v, back), snug.ErrDevice)
	require.ErrorIs(t, snug.ToFloat64(back, v), snug.ErrDevice)
}

// A matrix of gonum as 16-bit weights, and back.
func ExampleFromFloat64() {
	m := mat.NewDense(2, 2, []float64{0.1, 1, 2, 3})
	w := make([]snug.BFloat16, 4)
	if err := snug.FromFloat64(w, m.RawMatrix().Data); err != nil {
		panic(err)
	}
	err := snug.ToFloat64(m.RawMatrix().Data, w)
	fmt.Println(m.At(0, 0), m.At(1, 1), err)
	// Output: 0.10009765625 3 <nil>
}

// The bfloat16 numbers of another project, without a copy.
func ExampleBFloat16s() {
	type bfloat16 uint16 // as the other project has it
	theirs := []bfloat16{0x3f80, 0xc000}
	ours := snug.BFloat16s(theirs)
	err := snug.Copy(ours[1:], ours[:1])
	fmt.Println(theirs[1] == 0x3f80, ours, err)
	// Output: true [1 1] <nil>
}
