package quant8

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// BenchmarkQuantize has vectors far beyond the last cache. The bytes are those
// of one pass, though src is read twice.
func BenchmarkQuantize(b *testing.B) { benchmarkQuantization(b, Quantize) }

func BenchmarkDequantize(b *testing.B) {
	benchmarkQuantization(b, func(codes []uint8, absmax []float32, x snug.View, m *Map, block int) error {
		return Dequantize(x, codes, absmax, m, block)
	})
}

func benchmarkQuantization(b *testing.B, do func(codes []uint8, absmax []float32, x snug.View, m *Map, block int) error) {
	const n, parts, block = 1 << 23, 8, 256
	codes, absmax, m := make([]uint8, n*parts), make([]float32, n*parts/block), DynamicMap(true)
	x := snug.ViewOf(kerneltest.Normal(5, n*parts))
	bf16 := snug.ViewOf(make([]snug.BFloat16, n*parts))
	half.Convert(bf16, x, 0, n*parts, false)
	require.NoError(b, Quantize(codes, absmax, x, m, block))
	for _, v := range []snug.View{x, bf16} {
		b.Run(v.DType().String(), func(b *testing.B) {
			kerneltest.OfCopy(b, parts, n*(1+v.DType().Size())+4*n/block, func(part int) {
				lo, hi := cpu.Chunk(n*parts, n, part)
				x, _ := v.Slice(lo, hi)
				_ = do(codes[lo:hi], absmax[lo/block:hi/block], x, m, block)
			})
		})
	}
}

// BenchmarkStep has parameters far beyond the last cache. The bytes are those of
// p and the state, read and written, and of g, which is read twice.
func BenchmarkStep(b *testing.B) {
	const n, parts = 1 << 21, 16
	f32, bf16 := snug.ViewOf(kerneltest.Normal(1, n*parts)), snug.ViewOf(make([]snug.BFloat16, n*parts))
	half.Convert(bf16, f32, 0, n*parts, false)
	g, g16 := snug.ViewOf(kerneltest.Normal(2, n*parts)), snug.ViewOf(make([]snug.BFloat16, n*parts))
	half.Convert(g16, g, 0, n*parts, false)
	for _, c := range []struct {
		name  string
		bits  int
		p, g  snug.View
		bytes int
	}{
		{"32/f32", 32, f32, g, 32},
		{"8/f32", 8, f32, g, 20},
		{"16/f32", 16, f32, g, 24},
		{"4/f32", 4, f32, g, 18},
		{"32/bf16", 32, bf16, g16, 24},
		{"8/bf16", 8, bf16, g16, 12},
		{"16/bf16", 16, bf16, g16, 16},
		{"4/bf16", 4, bf16, g16, 10},
	} {
		b.Run(c.name, func(b *testing.B) {
			a := newAdamW(b, Options{Bits: c.bits}, map[string]int{"w": n * parts})
			advance(a)
			require.NoError(b, a.Step("w", c.p, c.g, 1))
			best := time.Duration(math.MaxInt64)
			kerneltest.OfCopy(b, parts, c.bytes*n, func(part int) {
				p, _ := c.p.Slice(part*n, (part+1)*n)
				g, _ := c.g.Slice(part*n, (part+1)*n)
				start := time.Now()
				_ = a.StepRange("w", part*n, p, g, 1)
				best = min(best, time.Since(start))
			})
			b.ReportMetric(float64(best.Nanoseconds())/n, "ns/param")
		})
	}
}

// BenchmarkMatrixStep is of one matrix far beyond the last cache, except for Muon.
func BenchmarkMatrixStep(b *testing.B) {
	for _, c := range []struct {
		rule       string
		rows, cols int
	}{{"adafactor", 4096, 4096}, {"momentum", 4096, 4096}, {"muon", 1024, 1024}, {"muon", 768, 3072}} {
		b.Run(fmt.Sprintf("%s/%dx%d", c.rule, c.rows, c.cols), func(b *testing.B) {
			a := newMatrices(b, c.rule, Options{}, map[string][2]int{"w": {c.rows, c.cols}})
			p, g := snug.ViewOf(kerneltest.Normal(1, c.rows*c.cols)), snug.ViewOf(kerneltest.Normal(2, c.rows*c.cols))
			for b.Loop() {
				advance(a)
				if err := a.Step("w", p, g, 1); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(c.rows*c.cols), "ns/parameter")
		})
	}
}

// BenchmarkLowRank makes steps of a square matrix and of a wide one; the first of GaLore's also makes its directions.
func BenchmarkLowRank(b *testing.B) {
	for _, c := range []struct {
		name string
		rule Rule
		bits int
	}{
		{"AdamW", AdamW{}, 8}, {"Apollo256", Apollo{}, 8}, {"Apollo25632bits", Apollo{}, 32}, {"Mini", Apollo{Tensor: true}, 8},
		{"GaLore128", GaLore{}, 8}, {"GaLore256", GaLore{Rank: 256}, 8},
	} {
		for _, side := range [][2]int{{4096, 4096}, {1024, 3072}, {3072, 1024}} {
			b.Run(fmt.Sprintf("%s/%dx%d", c.name, side[0], side[1]), func(b *testing.B) {
				a, err := New(c.rule, Options{Bits: c.bits})
				require.NoError(b, err)
				require.NoError(b, a.AddMatrix("w", side[0], side[1]))
				p, g := kerneltest.Normal(1, side[0]*side[1]), kerneltest.Normal(2, side[0]*side[1])
				advance(a)
				step(b, a, "w", p, g, 1)
				b.SetBytes(int64(4 * len(p)))
				for b.Loop() {
					if advance(a); (a.t-1)%200 == 0 {
						advance(a)
					}
					step(b, a, "w", p, g, 1)
				}
			})
		}
	}
}
