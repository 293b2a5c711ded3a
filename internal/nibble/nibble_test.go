package nibble

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// formats are one whose codes ascend, one whose do not, with two codes of 0, and one
// whose limits are rounded down.
var formats = []*Format{
	NewFormat([16]float32{-1, -0.75, -0.5, -0.4, -0.3, -0.2, -0.1, 0, 0.1, 0.2, 0.25, 0.3, 0.45, 0.6, 0.7, 1}),
	NewFormat([16]float32{0, 0.005, 0.6, 1, 0.3, 0.5, 0.2, 0.25, 0, -0.005, -0.6, -1, -0.3, -0.5, -0.2, -0.25}),
	NewNearestFormat(decimal),
}

var decimal = [16]float32{-0.8875, -0.6625, -0.4375, -0.2125, -0.0775, -0.0325, -0.0055, 0, 0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875, 1}

func TestFormat(t *testing.T) {
	for _, f := range formats {
		for rank, c := range f.Codes {
			require.Equal(t, f.Values[c], f.Values[f.Code(2*f.Values[c], 2)], "a value has its own code")
			if rank > 0 {
				require.LessOrEqual(t, f.Values[f.Codes[rank-1]], f.Values[c])
			}
		}
		require.Zero(t, f.Limits[0])
	}
	require.EqualValues(t, 0, formats[1].Code(0, 1), "the first of two codes of 0")
	require.EqualValues(t, 8, formats[1].Code(1e-9, 1))
	require.EqualValues(t, 0, formats[1].Code(-1e-9, 1))
	mid := formats[0].Limits[1]
	require.Equal(t, formats[0].Code(mid, 1)+1, formats[0].Code(math.Nextafter32(mid, 1), 1), "a midpoint belongs to the lower")
}

// TestNearestFormat compares exact distances at the limits, which differ from those in
// float32 at some.
func TestNearestFormat(t *testing.T) {
	f, rounded, differ := NewNearestFormat(decimal), NewFormat(decimal), 0
	for _, limit := range rounded.Limits[1:] {
		for _, x := range []float32{math.Nextafter32(limit, -1), limit, math.Nextafter32(limit, 1)} {
			want := 0
			for c, v := range decimal { // differences and sums of numbers this close are exact in float64
				if math.Abs(float64(v)-float64(x)) < math.Abs(float64(decimal[want])-float64(x)) {
					want = c
				}
			}
			require.EqualValues(t, want, f.Code(x, 1), "%g", x)
			if f.Code(x, 1) != rounded.Code(x, 1) {
				differ++
			}
		}
	}
	require.Positive(t, differ)
}

// guards are the elements after a result that nobody may write.
const guards = 70

// agree compares x by every tier with the Go loops.
func agree(t require.TestingT, f *Format, x []float32, block int) {
	blocks, bytes := cpu.Chunks(len(x), block), (len(x)+1)/2
	want, wantAbsmax := slices.Repeat([]uint8{77}, bytes+guards), slices.Repeat([]float32{77}, blocks+guards)
	encode(want[:bytes], wantAbsmax[:blocks], x, block, f)
	for tier, k := range Registry.All() {
		got, absmax := slices.Repeat([]uint8{77}, bytes+guards), slices.Repeat([]float32{77}, blocks+guards)
		k.Encode(got[:bytes], absmax[:blocks], x, block, f)
		require.Equal(t, kerneltest.Bits(wantAbsmax), kerneltest.Bits(absmax), "%v: absmax", tier)
		for i := range want {
			if want[i] != got[i] {
				require.Failf(t, "codes differ", "%v: byte %d of %d is %#x, want %#x", tier, i, bytes, got[i], want[i])
			}
		}
	}
	for _, r := range []*cpu.Registry[Kernels]{&Registry, &Streams} {
		for tier, k := range r.All() {
			name := fmt.Sprintf("%v, streams %v", tier, r == &Streams)
			decoders(t, name, k.DecodeF32, decodeF32, len(x), want, wantAbsmax[:blocks], block, f, kerneltest.Bits)
			decoders(t, name, k.DecodeF16, decodeF16, len(x), want, wantAbsmax[:blocks], block, f, same)
			decoders(t, name, k.DecodeBF16, decodeBF16, len(x), want, wantAbsmax[:blocks], block, f, same)
		}
	}
}

func same[T any](x []T) []T { return x }

// decoders compares a decoder with that in Go, at aligned and other addresses.
func decoders[T, B any](t require.TestingT, name string, fast, slow Decoder[T], n int, packed []uint8, absmax []float32, block int, f *Format, bits func([]T) []B) {
	for off := range 2 {
		want, got := aligned[T](off+n+guards), aligned[T](off+n+guards)
		slow(want[off:off+n], packed, absmax, block, f)
		fast(got[off:off+n], packed, absmax, block, f)
		require.Equal(t, bits(want), bits(got), "%s: %T", name, want)
	}
}

// aligned returns n elements that begin at a cache line.
func aligned[T any](n int) []T {
	x := make([]T, n+32)
	for uintptr(unsafe.Pointer(&x[0]))%64 != 0 {
		x = x[1:]
	}
	return x[:n]
}

func TestEveryLength(t *testing.T) {
	for _, f := range formats {
		for n := range 131 {
			agree(t, f, kerneltest.Normal(uint64(n), n), 32)
			agree(t, f, kerneltest.Normal(uint64(n), n), 64)
		}
		agree(t, f, kerneltest.Normal(1, 3000), 1024)
	}
}

// TestNearLimits has values around every limit, at which x/absmax is x, and
// around absmax times it for absmax of many fractions and exponents.
func TestNearLimits(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, f := range formats {
		for i := range 60 {
			absmax := float32(1)
			if i > 0 {
				absmax = math.Float32frombits(1 + rng.Uint32()%0x7f7fffff)
			}
			x := []float32{absmax, -absmax, 0, float32(math.Copysign(0, -1)), absmax / 0x1p30, -absmax / 0x1p30}
			for _, limit := range f.Limits[1:] {
				at := limit * absmax
				x = append(x, at, math.Nextafter32(at, absmax), math.Nextafter32(at, -absmax))
			}
			agree(t, f, append(x, make([]float32, 64-len(x))...), 64)
		}
	}
}

func TestSpecialBlocks(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, f := range formats {
		for _, bad := range []float32{inf, -inf, nan, -nan} {
			for _, at := range []int{0, 40, 70} {
				x := kerneltest.Normal(1, 75)
				x[at] = bad
				agree(t, f, x, 32)
				packed, absmax := make([]uint8, 38), make([]float32, 3)
				Registry.Best().Encode(packed, absmax, x, 32, f)
				require.True(t, absmax[at/32] != absmax[at/32])
				require.Equal(t, f.Code(0, 0)*0x11, packed[at/32*16], "the code of 0")
			}
		}
		for _, scale := range []float32{0, 1e-45, 1e-40, 0x1p-126, 1e38} {
			x := kerneltest.Normal(2, 77)
			for i := range x {
				x[i] *= scale / 8
			}
			x[40] = scale
			agree(t, f, x, 32)
		}
	}
}

func fuzzAgree(t *rapid.T) {
	value := rapid.Custom(func(t *rapid.T) float32 { return math.Float32frombits(rapid.Uint32().Draw(t, "bits")) })
	x := rapid.SliceOfN(value, 1, 100).Draw(t, "x")
	agree(t, rapid.SampledFrom(formats).Draw(t, "format"), x, 32)
}

func TestTiersAgree(t *testing.T) { rapid.Check(t, fuzzAgree) }
func FuzzTiersAgree(f *testing.F) { f.Fuzz(rapid.MakeFuzz(fuzzAgree)) }

func TestDecode(t *testing.T) {
	packed, absmax := []uint8{0x3b, 0x80}, []float32{3}
	f32, f16, bf16 := make([]float32, 3), make([]snug.Float16, 3), make([]snug.BFloat16, 3)
	for _, stream := range []bool{false, true} {
		Decode(snug.SliceView(f32), packed, absmax, 32, formats[1], stream)
		Decode(snug.SliceView(f16), packed, absmax, 32, formats[1], stream)
		Decode(snug.SliceView(bf16), packed, absmax, 32, formats[1], stream)
		require.Equal(t, []float32{3, -3, 0}, f32)
		require.Equal(t, []float32{3, -3, 0}, []float32{f16[0].Float32(), f16[1].Float32(), f16[2].Float32()})
		require.Equal(t, []float32{3, -3, 0}, []float32{bf16[0].Float32(), bf16[1].Float32(), bf16[2].Float32()})
	}
}

//check:not arm64
func TestNoAllocations(t *testing.T) {
	x, packed, absmax := kerneltest.Normal(1, 1000), make([]uint8, 500), make([]float32, 16)
	bf16 := make([]snug.BFloat16, 1000)
	kerneltest.NoAllocs(t, func() {
		k := Registry.Best()
		k.Encode(packed, absmax, x, 64, formats[0])
		k.DecodeF32(x, packed, absmax, 64, formats[0])
		k.DecodeBF16(bf16, packed, absmax, 64, formats[0])
	})
}

// BenchmarkBlocks has 4096 elements that stay in the caches.
func BenchmarkBlocks(b *testing.B) {
	const n, block = 4096, 64
	x, bf16, packed, absmax := kerneltest.Normal(1, n), make([]snug.BFloat16, n), make([]uint8, n/2), make([]float32, n/block)
	f := formats[0]
	for tier, k := range Registry.All() {
		for name, do := range map[string]func(){
			"encode":      func() { k.Encode(packed, absmax, x, block, f) },
			"decode/f32":  func() { k.DecodeF32(x, packed, absmax, block, f) },
			"decode/bf16": func() { k.DecodeBF16(bf16, packed, absmax, block, f) },
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
