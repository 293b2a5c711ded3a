package half

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// lowers are the lower halves at which a split changes its behaviour.
var lowers = []uint32{0, 1, 2, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff}

// nearestAway rounds x, not NaN, to the nearest bfloat16, ties away from zero, by
// the distances in float64.
func nearestAway(x float32) snug.BFloat16 {
	down := snug.BFloat16(math.Float32bits(x) >> 16)
	if math.IsInf(float64(x), 0) {
		return down
	}
	up := float64((down + 1).Float32())
	if math.IsInf(up, 0) { // stands for the next power of two
		up = math.Copysign(0x1p128, up)
	}
	if math.Abs(float64(x)-float64(down.Float32())) < math.Abs(up-float64(x)) {
		return down
	}
	return down + 1
}

// TestSplit has every upper half with every lower half at the edges.
func TestSplit(t *testing.T) {
	src := make([]float32, 0, len(lowers)<<16)
	for code := range uint32(1 << 16) {
		for _, low := range lowers {
			src = append(src, math.Float32frombits(code<<16|low))
		}
	}
	for tier, k := range SplitRegistry.All() {
		upper, rest, back := make([]snug.BFloat16, len(src)), make([]int16, len(src)), make([]float32, len(src))
		k.Split(upper, rest, src)
		k.Join(back, upper, rest)
		for i, x := range src {
			want, bits := nearestAway(x), math.Float32bits(x)
			low := int16(bits)
			if x != x {
				want, low = snug.ToBFloat16(x), 0
				bits = uint32(want) << 16
			}
			if upper[i] != want || rest[i] != low {
				t.Fatalf("%v: %x: upper %x, rest %d, want %x, %d", tier, math.Float32bits(x), upper[i], rest[i], want, low)
			}
			if got := math.Float32bits(back[i]); got != bits {
				t.Fatalf("%v: %x came back as %x", tier, bits, got)
			}
		}
	}
}

// TestJoin has uppers that a Split does not give with the rest: a NaN stays one.
func TestJoin(t *testing.T) {
	var upper []snug.BFloat16
	var rest []int16
	for code := range 1 << 16 {
		for _, low := range []int16{0, 1, -1, math.MaxInt16, math.MinInt16} {
			upper, rest = append(upper, snug.BFloat16(code)), append(rest, low)
		}
	}
	for tier, k := range SplitRegistry.All() {
		got := make([]float32, len(upper))
		k.Join(got, upper, rest)
		for i, x := range got {
			if want := uint32(int32(upper[i])<<16 + int32(rest[i])); math.Float32bits(x) != want {
				t.Fatalf("%v: %x and %d: want %x, got %x", tier, upper[i], rest[i], want, math.Float32bits(x))
			}
			if math.IsNaN(float64(upper[i].Float32())) && x == x {
				t.Fatalf("%v: NaN %x and %d: got %x", tier, upper[i], rest[i], math.Float32bits(x))
			}
		}
	}
}

// Every length and alignment gives the Go tier's bits and touches nothing else.
func TestSplitEveryLength(t *testing.T) {
	const size = 180
	rng := rand.New(rand.NewPCG(9, 8))
	src := make([]float32, size)
	for i := range src {
		src[i] = math.Float32frombits(rng.Uint32())
	}
	for tier, k := range SplitRegistry.All() {
		for n := range 131 {
			lo := n % 37
			hi := lo + n
			type results struct {
				upper [size]snug.BFloat16
				rest  [size]int16
				back  [size]float32
			}
			var got, want results
			k.Split(got.upper[lo:hi], got.rest[lo:hi], src[lo:hi])
			split(want.upper[lo:hi], want.rest[lo:hi], src[lo:hi])
			require.Equal(t, want.upper, got.upper, "%v: elements %d to %d", tier, lo, hi)
			require.Equal(t, want.rest, got.rest, "%v: elements %d to %d", tier, lo, hi)
			k.Join(got.back[lo:hi], got.upper[lo:hi], got.rest[lo:hi])
			join(want.back[lo:hi], want.upper[lo:hi], want.rest[lo:hi])
			require.Equal(t, bytesOf(want.back[:]), bytesOf(got.back[:]), "%v: elements %d to %d", tier, lo, hi)
		}
	}
}

// BenchmarkSplit goes through both halves of vectors far beyond the last cache, a
// chunk of 64 Ki elements at a time, as an update does: it reads 4 bytes of an
// element and writes 4, and the float32 between stay in the caches.
func BenchmarkSplit(b *testing.B) {
	const n, parts, chunk = 1 << 22, 16, 1 << 16
	type args struct {
		upper []snug.BFloat16
		rest  []int16
		part  int
		k     *Splits[int16]
	}
	var scratch cpu.Scratch
	task := cpu.NewTask(func(a *args, item int) {
		lo, hi := cpu.Chunk(n*parts, chunk, item+a.part*n/chunk)
		w := scratch.Get(hi - lo)
		defer scratch.Put(w)
		a.k.Join(*w, a.upper[lo:hi], a.rest[lo:hi])
		a.k.Split(a.upper[lo:hi], a.rest[lo:hi], *w)
	})
	upper, rest := make([]snug.BFloat16, n*parts), make([]int16, n*parts)
	for i := range upper {
		upper[i], rest[i] = snug.BFloat16(i), int16(i)
	}
	for tier, k := range SplitRegistry.All() {
		b.Run(tier.String(), func(b *testing.B) {
			kerneltest.OfCopy(b, parts, 8*n, func(part int) { task.Run(n/chunk, args{upper, rest, part, k}) })
		})
	}
}
