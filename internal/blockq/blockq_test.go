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

// dynamic is close to the dynamic map of package quant8.
func dynamic(signed bool) *[256]float32 { return spans(signed, 1e-6, 10) }

// ties has midpoints that are float32.
func ties() *[256]float32 { return spans(true, 0x1p-12, 4) }

// spans has seven spans of equidistant entries, the first up to least, each with twice as many as the one below and a factor above it.
func spans(signed bool, least, factor float64) *[256]float32 {
	entries, n, top := []float32{0, 1}, 1, least
	if !signed {
		n = 2
	}
	for range 7 {
		for k := range n {
			x := float32(top * (1/factor + (1-1/factor)*(float64(k)+0.5)/float64(n)))
			entries = append(entries, x)
			if signed {
				entries = append(entries, -x)
			}
		}
		n, top = 2*n, top*factor
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
	for name, m := range map[string]*[256]float32{"signed": dynamic(true), "unsigned": dynamic(false), "linear": linear(), "ties": ties()} {
		e := new(Encoder)
		e.Build(m, false)
		out[name] = e
	}
	out["keeping"] = new(Encoder)
	out["keeping"].Build(dynamic(true), true)
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
	require.True(t, es["signed"].quick && es["unsigned"].quick && es["keeping"].quick)
	require.True(t, es["signed"].lined && es["unsigned"].lined && es["keeping"].lined)
	require.True(t, es["signed"].segmented && es["unsigned"].segmented && es["keeping"].segmented && es["ties"].segmented)
	require.False(t, es["linear"].quick)
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
		k.Encode(codes[lo:hi], in, absmax, e)
		encode(want[lo:hi], in, absmax, e)
		for i := range want {
			if want[i] != codes[i] {
				require.Failf(t, "codes differ", "%v: code %d of %d, of %g/%g, is %d, want %d", tier, i-lo, hi-lo, x[i], absmax, codes[i], want[i])
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
			es["signed"].Encode(codes, x, got)
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
	es["keeping"].Encode(codes, make([]float32, 20), 0)
	require.Equal(t, slices.Repeat([]uint8{127}, 20), codes)
}

// TestKeepSign holds that negative values keep their sign, whatever underflows,
// and that 0 of any sign is 0.
func TestKeepSign(t *testing.T) {
	e, plain := encoders()["keeping"], encoders()["signed"]
	minus0 := float32(math.Copysign(0, -1))
	for _, absmax := range []float32{1e-45, 0x1p-81, 0x1p-80, 1, 2, 0x1p99, 0x1.8p100, math.MaxFloat32} {
		x := slices.Repeat([]float32{absmax, -1e-45, 1e-45, 0, minus0, -0x1p-126, -absmax / 0x1p30, -absmax}, 4)
		want := make([]uint8, len(x))
		for i, v := range x {
			v = max(-absmax, min(v, absmax))
			x[i] = v
			want[i] = plain.Code((v + 0) / absmax)
			if v < 0 && want[i] == 127 {
				want[i] = 126
			}
		}
		for tier, k := range Registry.All() {
			codes := make([]uint8, len(x))
			k.Encode(codes, x, absmax, e)
			require.Equal(t, want, codes, "%v: %g", tier, absmax)
		}
	}
}

// TestQuotients encodes the values around absmax times each limit, for absmax of
// many fractions and at the ends of the exponents where Quick is ok.
func TestQuotients(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	fractions := []uint32{0, 1, 2, 0x7fffff, 0x7ffffe, 0x400000, 0x3fffff, 0x2aaaaa, 0x555555}
	for range 40 {
		fractions = append(fractions, rng.Uint32()&0x7fffff)
	}
	for name, e := range encoders() {
		t.Run(name, func(t *testing.T) {
			for _, exponent := range []uint32{127 - 81, 127 - 80, 127, 127 + 99, 127 + 100, 127 + 101} {
				for _, fraction := range fractions {
					absmax := math.Float32frombits(exponent<<23 | fraction)
					x := []float32{absmax}
					for _, limit := range e.limit[:255] {
						at := limit * absmax
						up, down := math.Nextafter32(at, 2*absmax), math.Nextafter32(at, -2*absmax)
						x = append(x, at, up, down, math.Nextafter32(up, 2*absmax), math.Nextafter32(down, -2*absmax))
					}
					agree(t, e, x, 0, len(x))
				}
			}
		})
	}
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
	return []*Encoder{es["signed"], es["unsigned"], es["linear"], es["keeping"]}
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

//check:not arm64
func TestNoAllocations(t *testing.T) {
	e, x, codes, absmax := shared[0], randoms(1000, 1), make([]uint8, 1000), make([]float32, 4)
	kerneltest.NoAllocs(t, func() {
		k := Registry.Best()
		e.Encode(codes, x, k.AbsMax(x))
		k.Decode(x, codes, e.Map(), absmax, 256)
		k.DecodeStream(x, codes, e.Map(), absmax, 256)
	})
}

// BenchmarkBlock has blocks of 256 elements that stay in the first cache.
func BenchmarkBlock(b *testing.B) {
	const n = 256
	e, x, codes := shared[0], randoms(n, 1), make([]uint8, n)
	absmax := []float32{absMax(x)}
	e.Encode(codes, x, absmax[0])
	for tier, k := range Registry.All() {
		for name, do := range map[string]func(){
			"absmax": func() { k.AbsMax(x) },
			"decode": func() { k.Decode(x, codes, e.Map(), absmax, n) },
			"encode": func() { k.Encode(codes, x, absmax[0], e) },
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
