package octet

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/kerneltest"
)

var formats = map[string]*Format{"e4m3": E4M3, "e5m2": E5M2, "int8": Int8}

// guards are the elements after a result that nobody may write.
const guards = 70

// random returns n codes that are numbers: every one in turn, from a random one on.
func random(seed uint64, n int, f *Format) []uint8 {
	codes := make([]uint8, 0, n)
	for c := uint8(rand.New(rand.NewPCG(seed, 1)).Uint32()); len(codes) < n; c += 77 {
		if f.Number(c) {
			codes = append(codes, c)
		}
	}
	return codes
}

func TestFormats(t *testing.T) {
	require.EqualValues(t, 448, E4M3.Values[0x7e])
	require.Zero(t, E4M3.Values[0x7f])
	require.EqualValues(t, -57344, E5M2.Values[0xfb])
	require.Zero(t, E5M2.Values[0x7c])
	require.EqualValues(t, -128, Int8.Values[0x80])
}

// decoders compares a decoder with that in Go, at aligned and other addresses.
func decoders[T, B any](t *testing.T, name string, fast, slow Decoder[T], codes []uint8, scales []float32, block int, f *Format, bits func([]T) []B) {
	for off := range 2 {
		want, got := make([]T, off+len(codes)+guards), make([]T, off+len(codes)+guards)
		slow(want[off:off+len(codes)], codes, scales, block, f)
		fast(got[off:off+len(codes)], codes, scales, block, f)
		require.Equal(t, bits(want), bits(got), "%s: %T", name, want)
	}
}

func same[T any](x []T) []T { return x }

// scalesOf are usual scales, and those whose products are subnormal, largest, negative or 0.
func scalesOf(f *Format, blocks int) []float32 {
	largest := f.Largest()
	all := []float32{0.01, 0x1.234p-7, 1, 0x1p-118, 0x1p-126, 1e-45, math.MaxFloat32 / largest, -0.3, 0, 3e-40}
	scales := make([]float32, blocks)
	for i := range scales {
		scales[i] = all[(i+blocks)%len(all)]
	}
	return scales
}

func TestDecode(t *testing.T) {
	for name, f := range formats {
		for _, block := range []int{32, 64, 128, 100, 1000, 7} {
			for _, n := range []int{1, 5, 31, 32, 33, 64, 127, 128, 129, 255, 256, 257, 700, 1000, 4096} {
				codes, scales := random(uint64(n), n, f), scalesOf(f, cpu.Chunks(n, block))
				for tier, k := range Registry.All() {
					name := fmt.Sprintf("%s, %v, %d in blocks of %d", name, tier, n, block)
					decoders(t, name, k.DecodeF32, decodeF32, codes, scales, block, f, kerneltest.Bits)
					decoders(t, name, k.DecodeF16, decodeF16, codes, scales, block, f, same)
					decoders(t, name, k.DecodeBF16, decodeBF16, codes, scales, block, f, same)
				}
			}
		}
	}
}

func TestDecodeViews(t *testing.T) {
	codes := []uint8{0x38, 0xb8, 0x30}
	f32, f16, bf16 := make([]float32, 3), make([]snug.Float16, 3), make([]snug.BFloat16, 3)
	Decode(snug.SliceView(f32), codes, []float32{3}, 128, E4M3)
	Decode(snug.SliceView(f16), codes, []float32{3}, 128, E4M3)
	Decode(snug.SliceView(bf16), codes, []float32{3}, 128, E4M3)
	want := []float32{3, -3, 1.5}
	require.Equal(t, want, f32)
	require.Equal(t, want, []float32{f16[0].Float32(), f16[1].Float32(), f16[2].Float32()})
	require.Equal(t, want, []float32{bf16[0].Float32(), bf16[1].Float32(), bf16[2].Float32()})
}

// TestDot compares every tier, number of rows and of codes with sums in float64.
func TestDot(t *testing.T) {
	for _, f := range formats {
		for _, n := range []int{0, 32, 64, 96, 448, 2048, 640} {
			codes := random(3, n+guards, f)
			for rows := 1; rows <= DotRows; rows++ {
				stride := n + 3
				x := kerneltest.Normal(2, rows*stride)[1:] // not aligned
				for tier, k := range Registry.All() {
					y := slices.Repeat([]float32{77}, rows+guards)
					k.Dot(y[:rows], x, stride, codes[:n], f)
					for r := range rows {
						want, bound := 0.0, 0.0
						for i, c := range codes[:n] {
							p := float64(f.Values[c]/f.Unit) * float64(x[r*stride+i])
							want += p
							bound += math.Abs(p)
						}
						require.InDelta(t, want, float64(y[r]), float64(n/8+6)*0x1p-24*bound, "%v: %d rows of %d", tier, rows, n)
					}
					for _, v := range y[rows:] {
						require.EqualValues(t, 77, v)
					}
				}
			}
		}
	}
}

// TestAxpy compares every tier, number of rows, of vectors and of codes with sums in float64.
func TestAxpy(t *testing.T) {
	for _, f := range formats {
		for _, size := range [][2]int{{1, 0}, {1, 32}, {2, 64}, {3, 96}, {4, 448}, {5, 2048}, {11, 96}, {8, 2048}} {
			count, n := size[0], size[1]
			stride := n + 7
			codes := random(5, count*stride-7, f)
			for _, rows := range []int{1, 2, 4, 8} {
				a, start := kerneltest.Normal(2, count*rows), kerneltest.Normal(3, 1+rows*n+guards)
				before, got := make([]float32, n), make([]float32, n)
				for tier, k := range Registry.All() {
					whole := slices.Clone(start)
					y := whole[1 : 1+rows*n] // not aligned
					k.Axpy(y, a, rows, codes, stride, f)
					for r := range rows {
						Gather(before, start[1:], r, rows)
						Gather(got, y, r, rows)
						for i, v := range got {
							want, bound := float64(before[i]), math.Abs(float64(before[i]))
							for j := range count {
								p := float64(a[j*rows+r]) * float64(f.Values[codes[j*stride+i]]/f.Unit)
								want += p
								bound += math.Abs(p)
							}
							require.InDelta(t, want, float64(v), float64(count+1)*(0x1p-24+0x1p-45)*bound,
								"%v: %d vectors, %d rows of %d: element %d of row %d", tier, count, rows, n, i, r)
						}
					}
					require.Equal(t, start[0], whole[0])
					require.Equal(t, start[1+rows*n:], whole[1+rows*n:], "%v", tier)
				}
			}
		}
	}
}

//check:not arm64
func TestNoAllocations(t *testing.T) {
	codes, scales := random(1, 1024, E4M3), make([]float32, 8)
	x, bf16, y := make([]float32, 1024), make([]snug.BFloat16, 1024), make([]float32, 1)
	kerneltest.NoAllocs(t, func() {
		k := Registry.Best()
		k.DecodeF32(x, codes, scales, 128, E4M3)
		k.DecodeBF16(bf16, codes, scales, 128, E4M3)
		k.Dot(y, x, 1024, codes, E4M3)
		k.Axpy(x, y, 1, codes, 1024, E4M3)
	})
}

// BenchmarkCodes has a vector of 4096 codes that stays in the caches.
func BenchmarkCodes(b *testing.B) {
	const n, block = 4096, 128
	bf16, scales := make([]snug.BFloat16, n), kerneltest.Normal(1, n/block)
	for name, f := range formats {
		codes := random(1, n, f)
		run := func(name string, do func()) {
			b.Run(name, func(b *testing.B) {
				for b.Loop() {
					do()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/code")
			})
		}
		for tier, k := range Registry.All() {
			run(fmt.Sprintf("decode/%s/%v", name, tier), func() { k.DecodeBF16(bf16, codes, scales, block, f) })
			for _, rows := range []int{1, 8} {
				x, y := kerneltest.Normal(2, rows*n), make([]float32, rows)
				run(fmt.Sprintf("dot%d/%s/%v", rows, name, tier), func() { k.Dot(y, x, n, codes, f) })
			}
		}
	}
}
