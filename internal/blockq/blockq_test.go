package blockq

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// dynamic is close to the dynamic map of package quant8: decades of equidistant
// entries, each with twice as many as the one below.
func dynamic(signed bool) *[256]float32 {
	entries, n := []float32{0, 1}, 1
	if !signed {
		n = 2
	}
	for decade := 1e-6; decade < 5; decade *= 10 {
		for k := range n {
			x := float32(decade * (0.1 + 0.9*(float64(k)+0.5)/float64(n)))
			entries = append(entries, x)
			if signed {
				entries = append(entries, -x)
			}
		}
		n *= 2
	}
	slices.Sort(entries)
	return (*[256]float32)(entries)
}

// linear has equidistant entries and steep ones next to 0, several in a cell of
// the encoder's table.
func linear() *[256]float32 {
	m := new([256]float32)
	for c := range m {
		m[c] = float32(c-100) / 160
		if c >= 100 && c < 110 {
			m[c] = 0x1p-30 * (1 + float32(c)*0x1p-12)
		}
	}
	return m
}

func encoders() map[string]*Encoder {
	out := map[string]*Encoder{}
	for name, m := range map[string]*[256]float32{"signed": dynamic(true), "unsigned": dynamic(false), "linear": linear()} {
		e := new(Encoder)
		e.Build(m)
		out[name] = e
	}
	return out
}

func randoms(n int, seed uint64) []float32 {
	rng := rand.New(rand.NewPCG(seed, 3))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64() * math.Exp(-3*rng.ExpFloat64()))
	}
	return x
}

func TestLimitsInCells(t *testing.T) {
	es := encoders()
	require.Zero(t, es["signed"].more, "one comparison is enough")
	require.Zero(t, es["unsigned"].more)
	require.Positive(t, es["linear"].more)
}

// agree compares one block at x[lo:hi] by every tier with the Go loops.
func agree(t require.TestingT, e *Encoder, x []float32, lo, hi int) {
	in := x[lo:hi]
	absmax := absMax(in)
	for tier, k := range Registry.All() {
		got := k.AbsMax(in)
		require.Equal(t, math.Float32bits(absmax), math.Float32bits(got), "%v: absmax", tier)
		if absmax == 0 || absmax != absmax {
			continue
		}
		codes, want := slices.Repeat([]uint8{77}, len(x)), slices.Repeat([]uint8{77}, len(x))
		for _, lowered := range []int{None, max(1, int(e.zero))} {
			k.Encode(codes[lo:hi], in, absmax, e, lowered)
			encode(want[lo:hi], in, absmax, e, lowered)
			for i := range want {
				if want[i] != codes[i] {
					require.Failf(t, "codes differ", "%v: lowered %d: code %d of %d is %d, want %d", tier, lowered, i-lo, hi-lo, codes[i], want[i])
				}
			}
		}
	}
}

func TestEveryLength(t *testing.T) {
	for name, e := range encoders() {
		t.Run(name, func(t *testing.T) {
			for n := range 131 {
				agree(t, e, randoms(n+20, uint64(n)), n%5, n%5+n)
			}
		})
	}
}

// TestNearLimits encodes values around every limit and entry, at which x/absmax
// is x.
func TestNearLimits(t *testing.T) {
	for name, e := range encoders() {
		x := []float32{1, 0, float32(math.Copysign(0, -1)), 1e-45, -1e-45, 1e-30, -1e-30}
		for c := range 255 {
			for _, at := range []float32{e.limit[c], e.m[c]} {
				if at >= -1 && at <= 1 {
					x = append(x, at, math.Nextafter32(at, 0), -at, math.Nextafter32(-at, 0))
				}
			}
		}
		t.Run(name, func(t *testing.T) { agree(t, e, x, 0, len(x)) })
	}
}

func TestCells(t *testing.T) {
	for name, e := range encoders() {
		var x []float32
		for cell := range uint32(0x3f80) {
			for _, low := range []uint32{0, 0x1234, 0xffff} {
				v := math.Float32frombits(cell<<16 | low)
				x = append(x, v, -v)
			}
		}
		x = append(x, 1)
		t.Run(name, func(t *testing.T) { agree(t, e, x, 0, len(x)) })
	}
}

func TestSpecialValues(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	es := encoders()
	for _, bad := range []float32{inf, -inf, nan, -nan} {
		for _, at := range []int{0, 17, 36} {
			x := randoms(37, 1)
			x[at] = bad
			agree(t, es["signed"], x, 0, 37)
			codes := make([]uint8, 37)
			got := absMax(x)
			require.True(t, got != got)
			es["signed"].Encode(codes, x, got, true)
			require.Equal(t, slices.Repeat([]uint8{127}, 37), codes)
		}
	}
	for _, scale := range []float32{1e-45, 1e-40, 0x1p-126, 1e-20, 1e20, 0x1p125} {
		x := randoms(77, 2)
		for i := range x {
			x[i] *= scale / 8
		}
		x[40] = scale
		agree(t, es["signed"], x, 0, 77)
		agree(t, es["unsigned"], x, 0, 77)
	}
	codes := make([]uint8, 20)
	es["signed"].Encode(codes, make([]float32, 20), 0, true)
	require.Equal(t, slices.Repeat([]uint8{127}, 20), codes)
	es["signed"].Encode(codes[:3], []float32{2, -1e-9, 1e-9}, 2, true)
	require.Equal(t, []uint8{255, 126, 127}, codes[:3])
}

func fuzzAgree(t *rapid.T) {
	value := rapid.Custom(func(t *rapid.T) float32 { return math.Float32frombits(rapid.Uint32().Draw(t, "bits")) })
	x := rapid.SliceOfN(value, 1, 80).Draw(t, "x")
	e := rapid.SampledFrom(shared).Draw(t, "map")
	agree(t, e, x, 0, len(x))
}

// shared are the encoders of the fuzz test, built once.
var shared = func() []*Encoder {
	es := encoders()
	return []*Encoder{es["signed"], es["unsigned"], es["linear"]}
}()

func TestTiersAgree(t *testing.T) { rapid.Check(t, fuzzAgree) }
func FuzzTiersAgree(f *testing.F) { f.Fuzz(rapid.MakeFuzz(fuzzAgree)) }

// TestDecode decodes blocks of every kind of length, at aligned and other
// addresses.
func TestDecode(t *testing.T) {
	m := dynamic(true)
	for tier, k := range Registry.All() {
		for _, block := range []int{32, 33, 48, 256} {
			for _, n := range []int{0, 1, 31, 32, 33, 100, 1000, 1024} {
				for off := range 3 {
					codes := make([]uint8, n)
					for i := range codes {
						codes[i] = uint8(i * 37)
					}
					absmax := randoms(cpu.Chunks(n, block), 4)
					whole := aligned(n + 40)
					want, stream := slices.Clone(whole), aligned(n+40)
					k.Decode(whole[off:off+n], codes, m, absmax, block)
					k.DecodeStream(stream[off:off+n], codes, m, absmax, block)
					for i, c := range codes {
						want[off+i] = m[c] * absmax[i/block]
					}
					require.Equal(t, want, whole, "%v: %d in blocks of %d", tier, n, block)
					require.Equal(t, want, stream, "%v: %d in blocks of %d, streamed", tier, n, block)
				}
			}
		}
	}
}

// aligned returns n numbers that begin at a cache line.
func aligned(n int) []float32 {
	x := make([]float32, n+16)
	for uintptr(unsafe.Pointer(&x[0]))%64 != 0 {
		x = x[1:]
	}
	return x[:n]
}

func TestNoAllocations(t *testing.T) {
	e, x, codes, absmax := shared[0], randoms(1000, 1), make([]uint8, 1000), make([]float32, 4)
	kerneltest.NoAllocs(t, func() {
		k := Registry.Best()
		e.Encode(codes, x, k.AbsMax(x), true)
		k.Decode(x, codes, e.Map(), absmax, 256)
		k.DecodeStream(x, codes, e.Map(), absmax, 256)
	})
}

// BenchmarkBlock has blocks of 256 elements that stay in the first cache.
func BenchmarkBlock(b *testing.B) {
	const n = 256
	e, x, codes := shared[0], randoms(n, 1), make([]uint8, n)
	absmax := []float32{absMax(x)}
	e.Encode(codes, x, absmax[0], true)
	for tier, k := range Registry.All() {
		for name, do := range map[string]func(){
			"absmax": func() { k.AbsMax(x) },
			"decode": func() { k.Decode(x, codes, e.Map(), absmax, n) },
			"encode": func() { k.Encode(codes, x, absmax[0], e, int(e.zero)) },
		} {
			b.Run(fmt.Sprintf("%s/%v", name, tier), func(b *testing.B) {
				for b.Loop() {
					do()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/element")
			})
		}
	}
}
