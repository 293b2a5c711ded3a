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

// nearest24 rounds x, not NaN, to nearest even with 15 explicit bits of significand, in float64.
func nearest24(x float32) float32 {
	if x-x != 0 || x == 0 {
		return x
	}
	_, e := math.Frexp(math.Abs(float64(x)))
	gap := math.Ldexp(1, max(e, -125)-16)
	y := math.RoundToEven(float64(x)/gap) * gap
	if math.Abs(y) >= 0x1p128 {
		return float32(math.Inf(int(math.Copysign(1, y))))
	}
	return float32(math.Copysign(y, float64(x)))
}

// want24 is what a split of x gives, whose 24 bits are y.
func want24(x, y float32) (upper snug.BFloat16, rest int8, back uint32) {
	if x != x {
		return snug.ToBFloat16(x), 0, uint32(snug.ToBFloat16(x)) << 16
	}
	b := math.Float32bits(y)
	return nearestAway(y), int8(b >> 8), b
}

// uppersWithEdges has every upper half with every lower half at the edges of both roundings.
func uppersWithEdges() (x []float32) {
	edges := []uint32{0, 1, 0x7f, 0x80, 0x81, 0xff, 0x100, 0x180, 0x7f00, 0x7f7f, 0x7f80, 0x7f81, 0x7fff, 0x8000, 0x8080, 0x80ff, 0xff7f, 0xff80, 0xffff}
	for code := range uint32(1 << 16) {
		for _, low := range edges {
			x = append(x, math.Float32frombits(code<<16|low))
		}
	}
	return x
}

func TestSplit24(t *testing.T) {
	src := uppersWithEdges()
	for tier, k := range Split24Registry.All() {
		upper, rest, back := make([]snug.BFloat16, len(src)), make([]int8, len(src)), make([]float32, len(src))
		k.Split(upper, rest, src)
		k.Join(back, upper, rest)
		for i, x := range src {
			wantUpper, wantRest, bits := want24(x, nearest24(x))
			if upper[i] != wantUpper || rest[i] != wantRest || math.Float32bits(back[i]) != bits {
				t.Fatalf("%v: %x: upper %x, rest %d, back %x, want %x, %d, %x", tier, math.Float32bits(x), upper[i], rest[i],
					math.Float32bits(back[i]), wantUpper, wantRest, bits)
			}
		}
	}
}

// TestSplit24Error bounds what 24 bits lose: half a gap, 2^-16 of the power of two below.
func TestSplit24Error(t *testing.T) {
	src, worst := uppersWithEdges(), 0.0
	upper, rest, back := make([]snug.BFloat16, len(src)), make([]int8, len(src)), make([]float32, len(src))
	split24(upper, rest, src)
	join(back, upper, rest)
	for i, x := range src {
		if a := math.Abs(float64(x)); a >= 0x1p-126 && a < 0x1.fffep127 {
			worst = max(worst, math.Abs(float64(back[i])-float64(x))/a)
		}
	}
	require.LessOrEqual(t, worst, 0x1p-16)
	require.Greater(t, worst, 0x1p-16*0.99, "the bound is sharp")
}

// TestSplit24Stochastic has every draw for numbers at all distances from their neighbours, and draws at the edges
// for every upper half.
func TestSplit24Stochastic(t *testing.T) {
	var src []float32
	var draws []uint16
	for _, low := range []uint32{0, 1, 0x7f, 0x80, 0xff, 0x7f80, 0x7fff, 0xffff} {
		for draw := range 256 {
			src, draws = append(src, math.Float32frombits(0x3f80<<16|low)), append(draws, uint16(draw<<8|draw^0xa5))
		}
	}
	for _, x := range uppersWithEdges() {
		for _, draw := range []uint16{0, 0x7fff, 0xffff} {
			src, draws = append(src, x), append(draws, draw)
		}
	}
	for tier, k := range Split24Registry.All() {
		upper, rest, back := make([]snug.BFloat16, len(src)), make([]int8, len(src)), make([]float32, len(src))
		k.SplitStochastic(upper, rest, src, draws)
		k.Join(back, upper, rest)
		for i, x := range src {
			down := math.Float32bits(x) &^ 0xff
			if math.Float32bits(x)&0xff+uint32(draws[i]>>8) >= 256 {
				down += 256
			}
			wantUpper, wantRest, bits := want24(x, math.Float32frombits(down))
			if upper[i] != wantUpper || rest[i] != wantRest || math.Float32bits(back[i]) != bits {
				t.Fatalf("%v: %x, draw %x: upper %x, rest %d, want %x, %d", tier, math.Float32bits(x), draws[i], upper[i], rest[i], wantUpper, wantRest)
			}
		}
	}
}

// TestJoin24 has uppers that a split does not give with the rest: a NaN stays one.
func TestJoin24(t *testing.T) {
	var upper []snug.BFloat16
	var rest []int8
	for code := range 1 << 16 {
		for _, low := range []int8{0, 1, -1, math.MaxInt8, math.MinInt8} {
			upper, rest = append(upper, snug.BFloat16(code)), append(rest, low)
		}
	}
	for tier, k := range Split24Registry.All() {
		got := make([]float32, len(upper))
		k.Join(got, upper, rest)
		for i, x := range got {
			if want := uint32(int32(upper[i])<<16 + int32(rest[i])<<8); math.Float32bits(x) != want {
				t.Fatalf("%v: %x and %d: want %x, got %x", tier, upper[i], rest[i], want, math.Float32bits(x))
			}
			if math.IsNaN(float64(upper[i].Float32())) && x == x {
				t.Fatalf("%v: NaN %x and %d: got %x", tier, upper[i], rest[i], math.Float32bits(x))
			}
		}
	}
}

// Every length and alignment gives the Go tier's bits and touches nothing else.
func TestSplit24EveryLength(t *testing.T) {
	const size = 180
	rng := rand.New(rand.NewPCG(9, 8))
	src, draws := make([]float32, size), make([]uint16, size)
	for i := range src {
		src[i], draws[i] = math.Float32frombits(rng.Uint32()), uint16(rng.Uint32())
	}
	type results struct {
		upper [2][size]snug.BFloat16
		rest  [2][size]int8
		back  [size]float32
	}
	all := func(k *Splits[int8], lo, hi int) (r results) {
		k.Split(r.upper[0][lo:hi], r.rest[0][lo:hi], src[lo:hi])
		k.SplitStochastic(r.upper[1][lo:hi], r.rest[1][lo:hi], src[lo:hi], draws[lo:hi])
		k.Join(r.back[lo:hi], r.upper[0][lo:hi], r.rest[0][lo:hi])
		return r
	}
	for tier, k := range Split24Registry.All() {
		for n := range 131 {
			lo := n % 37
			got, want := all(k, lo, lo+n), all(&Splits[int8]{join[int8], split24, split24Stochastic}, lo, lo+n)
			require.Equal(t, want.upper, got.upper, "%v: %d elements", tier, n)
			require.Equal(t, want.rest, got.rest, "%v: %d elements", tier, n)
			require.Equal(t, bytesOf(want.back[:]), bytesOf(got.back[:]), "%v: %d elements", tier, n)
		}
	}
}

// BenchmarkSplit24 is BenchmarkSplit for 24 bits: it reads 3 bytes of an element and writes 3.
func BenchmarkSplit24(b *testing.B) {
	const n, parts, chunk = 1 << 22, 16, 1 << 16
	type args struct {
		upper []snug.BFloat16
		rest  []int8
		part  int
		k     *Splits[int8]
	}
	var scratch cpu.Scratch
	task := cpu.NewTask(func(a *args, item int) {
		lo, hi := cpu.Chunk(n*parts, chunk, item+a.part*n/chunk)
		w := scratch.Get(hi - lo)
		defer scratch.Put(w)
		a.k.Join(*w, a.upper[lo:hi], a.rest[lo:hi])
		a.k.Split(a.upper[lo:hi], a.rest[lo:hi], *w)
	})
	upper, rest := make([]snug.BFloat16, n*parts), make([]int8, n*parts)
	for i := range upper {
		upper[i], rest[i] = snug.BFloat16(i), int8(i)
	}
	for tier, k := range Split24Registry.All() {
		b.Run(tier.String(), func(b *testing.B) {
			kerneltest.OfCopy(b, parts, 6*n, func(part int) { task.Run(n/chunk, args{upper, rest, part, k}) })
		})
	}
}
