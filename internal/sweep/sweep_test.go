package sweep

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// sameBits compares with NaNs of any payload equal.
func sameBits(t require.TestingT, want, got []float32, msg ...any) {
	require.Len(t, got, len(want), msg...)
	for i := range want {
		if want[i] != want[i] && got[i] != got[i] {
			continue
		}
		if math.Float32bits(want[i]) != math.Float32bits(got[i]) {
			require.Failf(t, "values differ", "element %d: want %g, got %g %v", i, want[i], got[i], msg)
		}
	}
}

func sameSum(t require.TestingT, want, got Sums, msg ...any) {
	for l := range want {
		if want[l] != want[l] && got[l] != got[l] {
			continue
		}
		require.Equal(t, want[l], got[l], msg...)
	}
}

func floats[T snug.Element](x []T) []float32 {
	out := make([]float32, len(x))
	if f, ok := any(x).([]float32); ok {
		copy(out, f)
		return out
	}
	half.Load(out, snug.SliceView(x), 0)
	return out
}

func rounded[T snug.Element](x []float32) []T {
	out := make([]T, len(x))
	half.Store(snug.SliceView(out), 0, x)
	return out
}

// passesAgree compares the passes of a tier with loops over single elements,
// written from the definitions, and checks that nothing around x changes.
func passesAgree[T snug.Element](t require.TestingT, p Passes[T], whole []T, lo, hi int, a, b float32, limit uint32) {
	x := whole[lo:hi]
	in := floats(whole)

	got := slices.Clone(whole)
	p.Scale(got[lo:hi], a)
	want := slices.Clone(in)
	for i := lo; i < hi; i++ {
		want[i] *= a
	}
	sameBits(t, floats(rounded[T](want)), floats(got), "scale")

	got = slices.Clone(whole)
	cut := float32(math.Abs(float64(a)))
	if a-a != 0 {
		cut = 1
	}
	p.Clamp(got[lo:hi], cut)
	want = slices.Clone(in)
	for i := lo; i < hi; i++ {
		switch {
		case want[i]-want[i] != 0:
			want[i] = float32(math.NaN())
		case want[i] > cut:
			want[i] = cut
		case want[i] < -cut:
			want[i] = -cut
		}
	}
	sameBits(t, floats(rounded[T](want)), floats(got), "clamp")

	var sums Sums
	first := -1
	for i, v := range in[lo:hi] {
		q := 0
		if i < (hi-lo)/8192*8192 {
			q = i / 2048 % 4
		}
		sums[8*q+i%8] += float64(v) * float64(v)
		if first < 0 && math.Float32bits(float32(math.Abs(float64(v*a)))) >= limit {
			first = i
		}
	}
	sameSum(t, sums, p.Squares(x), "squares")
	require.Equal(t, first, p.FirstNotBelow(x, a, limit))

	for _, beta := range []float32{b, 0, 1} {
		acc := make([]float32, len(whole))
		for i := range acc {
			acc[i] = float32(i) - 3.3
		}
		wantAcc, far := slices.Clone(acc), slices.Clone(acc)
		for i := lo; i < hi; i++ {
			wantAcc[i] = float32(beta * wantAcc[i])
			if beta == 0 {
				wantAcc[i] = a * in[i]
			} else {
				wantAcc[i] = float32(a*in[i]) + wantAcc[i]
			}
		}
		p.Accumulate(acc[lo:hi], x, a, beta)
		sameBits(t, wantAcc, acc, "accumulate", beta)
		p.AccumulateFar(far[lo:hi], x, a, beta)
		sameBits(t, wantAcc, far, "accumulate far", beta)
	}
}

func allAgree(t require.TestingT, x []float32, lo, hi int, a, b float32, limit uint32) {
	for tier, k := range Registry.All() {
		passesAgree(t, k.F32, x, lo, hi, a, b, limit)
		passesAgree(t, k.F16, rounded[snug.Float16](x), lo, hi, a, b, limit)
		passesAgree(t, k.BF16, rounded[snug.BFloat16](x), lo, hi, a, b, limit)

		got, want := slices.Clone(x), slices.Clone(x)
		scale(want[lo:hi], a)
		sameSum(t, squares(want[lo:hi]), k.ScaleSquares(got[lo:hi], a), tier)
		sameBits(t, want, got, tier)
	}
}

func TestEveryLength(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	lengths := []int{2048, 8191, 8192, 8193, 8200, 16400, 17000}
	for n := range 131 {
		lengths = append(lengths, n)
	}
	for _, n := range lengths {
		x := make([]float32, n+12)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
		allAgree(t, x, n%5, n%5+n, 0.3, 0.7, math.Float32bits(0.6))
	}
}

func agree(t *rapid.T) {
	value := rapid.Custom(func(t *rapid.T) float32 { return math.Float32frombits(rapid.Uint32().Draw(t, "bits")) })
	lo, n := rapid.IntRange(0, 3).Draw(t, "offset"), rapid.IntRange(0, 100).Draw(t, "n")
	x := rapid.SliceOfN(value, lo+n+3, lo+n+3).Draw(t, "x")
	limit := rapid.Uint32Range(0, Infinity).Draw(t, "limit")
	allAgree(t, x, lo, lo+n, value.Draw(t, "a"), value.Draw(t, "b"), limit)
}

func TestTiersAgree(t *testing.T) { rapid.Check(t, agree) }
func FuzzTiersAgree(f *testing.F) { f.Fuzz(rapid.MakeFuzz(agree)) }

// TestFirstNotBelow puts a value that is too large at every place.
func TestFirstNotBelow(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(-1)), -2, 2} {
		limit := uint32(Infinity)
		if bad*bad == 4 {
			limit = math.Float32bits(2)
		}
		const n = 20_000
		for _, at := range []int{0, 1, 15, 16, 31, 50, 2047, 8000, 8191, 8192, 10_300, 16_383, 16_384, 16_500, 19_983, 19_984, 19_999} {
			x := make([]float32, n)
			x[at] = bad
			for _, v := range views(x) {
				require.Equal(t, at, FirstNotBelow(v, 0, n, 1, limit))
				require.Equal(t, at, FirstNotBelow(v, at, n, 1, limit))
				require.Equal(t, -1, FirstNotBelow(v, 0, at, 1, limit))
				require.Equal(t, -1, FirstNotBelow(v, at+1, n, 1, limit))
			}
		}
	}
}

// views returns x as every type.
func views(x []float32) []snug.View {
	return []snug.View{snug.ViewOf(slices.Clone(x)), snug.ViewOf(rounded[snug.Float16](x)), snug.ViewOf(rounded[snug.BFloat16](x))}
}

func TestViews(t *testing.T) {
	const n = 40
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i - 20)
	}
	for i, v := range views(x) {
		require.Equal(t, 1.0+4+9, Squares(v, 21, 24), v.DType())
		require.Equal(t, 4.0+16+36, ScaleSquares(v, 21, 24, 2), v.DType())
		Scale(v, 22, 24, 0.5)
		got := make([]float32, n)
		half.Load(got, v, 0)
		require.Equal(t, []float32{0, 2, 2, 3, 4}, got[20:25], v.DType())
		acc := []float32{1, 1, 1}
		Accumulate(acc, v, 21, 2, 0.5)
		require.Equal(t, []float32{4.5, 4.5, 6.5}, acc, v.DType())
		require.Equal(t, i, slices.Index([]snug.DType{snug.F32, snug.F16, snug.BF16}, v.DType()))
	}
	require.Zero(t, Squares(snug.View{}, 0, 0))
	require.Equal(t, -1, FirstNotBelow(snug.View{}, 0, 0, 1, Infinity))
}

// TestTotal bounds the sum against the exact one of squares that are integers.
func TestTotal(t *testing.T) {
	x := make([]float32, 10_007)
	for i := range x {
		x[i] = float32(i)
	}
	n := float64(len(x) - 1)
	for tier, k := range Registry.All() {
		require.Equal(t, n*(n+1)*(2*n+1)/6, k.F32.Squares(x).Total(), tier)
		x[5000] = float32(math.Inf(1))
		require.True(t, math.IsInf(k.F32.Squares(x).Total(), 1), tier)
		x[5000] = 5000
	}
	largest := slices.Repeat([]float32{math.MaxFloat32}, 100)
	require.False(t, math.IsInf(squares(largest).Total(), 0), "finite elements have a finite sum")
}

//check:not arm64
func TestNoAllocations(t *testing.T) {
	acc := make([]float32, 3000)
	for _, v := range views(make([]float32, 3000)) {
		kerneltest.NoAllocs(t, func() {
			Scale(v, 0, 2999, 2)
			_ = Squares(v, 0, 2999)
			_ = ScaleSquares(v, 0, 2999, 2)
			_ = FirstNotBelow(v, 0, 2999, 1, Infinity)
			Accumulate(acc, v, 0, 1, 1)
		})
	}
}

// BenchmarkSweep has vectors far beyond the last cache, in chunks of 256 KiB of
// float32.
func BenchmarkSweep(b *testing.B) {
	const n, parts, chunk = 1 << 22, 16, 1 << 16
	type args struct {
		x, acc snug.View
		part   int
		pass   func(a *args, lo, hi int)
	}
	task := cpu.NewTask(func(a *args, item int) {
		lo, hi := cpu.Chunk(n*parts, chunk, item+a.part*n/chunk)
		a.pass(a, lo, hi)
	})
	ones := slices.Repeat([]float32{1}, n*parts)
	acc := snug.ViewOf(slices.Clone(ones))
	for _, x := range views(ones) {
		size := x.DType().Size()
		for _, pass := range []struct {
			name  string
			bytes int
			do    func(a *args, lo, hi int)
		}{
			{"scale", 2 * size, func(a *args, lo, hi int) { Scale(a.x, lo, hi, 1) }},
			{"squares", size, func(a *args, lo, hi int) { Squares(a.x, lo, hi) }},
			{"scaleSquares", 2 * size, func(a *args, lo, hi int) { ScaleSquares(a.x, lo, hi, 1) }},
			{"firstNotBelow", size, func(a *args, lo, hi int) { FirstNotBelow(a.x, lo, hi, 1, Infinity) }},
			{"accumulate", size + 8, func(a *args, lo, hi int) { Accumulate(a.acc.Float32s()[lo:hi], a.x, lo, 0.5, 0.5) }},
			{"assign", size + 4, func(a *args, lo, hi int) { Accumulate(a.acc.Float32s()[lo:hi], a.x, lo, 0.5, 0) }},
		} {
			b.Run(fmt.Sprintf("%v/%s", x.DType(), pass.name), func(b *testing.B) {
				kerneltest.OfCopy(b, parts, n*pass.bytes, func(part int) { task.Run(n/chunk, args{x, acc, part, pass.do}) })
			})
		}
	}
}
