package amp

import (
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/gemm"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// at returns element (i, j) of op(x).
func at(x []float32, ld int, trans bool, i, j int) float64 {
	if trans {
		i, j = j, i
	}
	return float64(x[i*ld+j])
}

// unit is the rounding error of dt, relative to the value.
func unit(dt snug.DType) float64 {
	switch dt {
	case snug.F16:
		return 0x1p-11
	case snug.BF16:
		return 0x1p-8
	}
	return 0
}

// requireProduct compares got with the definition in float64, within the bound
// that MatMul states. All strides are set.
func requireProduct(t require.TestingT, got, c, a, b []float32, dt snug.DType, g MatMulOptions) {
	for i := range g.M {
		for j := range g.N {
			sum, size := 0.0, 0.0
			for k := range g.K {
				p := at(a, g.LDA, g.TransA, i, k) * at(b, g.LDB, g.TransB, k, j)
				sum, size = sum+p, size+math.Abs(p)
			}
			old := float64(c[i*g.LDC+j])
			want := float64(g.Into.Alpha)*sum + float64(g.Into.Beta)*old
			bound := float64(g.K+3) * 0x1p-24 * (math.Abs(float64(g.Into.Alpha))*size + math.Abs(float64(g.Into.Beta)*old))
			bound += unit(dt)*(math.Abs(want)+bound) + 0x1p-25
			require.InDelta(t, want, float64(got[i*g.LDC+j]), bound, "element %d, %d of %+v", i, j, g)
		}
	}
	for i := range got {
		if i%g.LDC >= g.N {
			require.Equal(t, round(dt, c[i]), got[i], "between rows")
		}
	}
}

// extent is the length of a matrix with one row to spare.
func extent(rows, cols, ld int) int { return rows*ld + cols }

func TestMatMulMemory(t *testing.T) {
	require.Equal(t, gemm.ScratchBytes, MatMulScratch)
	require.Equal(t, gemm.SharedBytes, MatMulShared)
}

func TestMatMul(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		for _, dc := range floats {
			for _, da := range floats {
				for _, db := range floats {
					for _, trans := range []int{0, 1, 2, 3} {
						g := MatMulOptions{
							M: 5, N: 7, K: 11, TransA: trans&1 != 0, TransB: trans&2 != 0,
							LDA: 13, LDB: 12, LDC: 9, Into: snug.Into{Alpha: 0.5, Beta: -2},
						}
						a, b, c := roundAll(da, kerneltest.Uniform(1, 13*11)), roundAll(db, kerneltest.Uniform(2, 12*11)), roundAll(dc, kerneltest.Uniform(3, 9*5))
						va, vb, vc := kerneltest.PutFloats(t, p, da, a), kerneltest.PutFloats(t, p, db, b), kerneltest.PutFloats(t, p, dc, c)
						require.NoError(t, MatMul(vc.View, va.View, vb.View, g))
						requireProduct(t, vc.Get(), c, a, b, dc, g)
						require.Equal(t, a, va.Get())
						require.Equal(t, b, vb.Get())
					}
				}
			}
		}
	})
}

func TestMatMulDefaults(t *testing.T) {
	c := []float32{nan, nan, nan, nan, 77}
	require.NoError(t, MatMul(c, []snug.Float16{0x3c00, 0x4000, 0x3c00, 0}, []float32{1, 2, 3, 4}, MatMulOptions{M: 2, N: 2, K: 2}))
	require.Equal(t, []float32{7, 10, 1, 2, 77}, c, "Alpha 1, contiguous, c not read, the rest not written")
}

func TestMatMulEmpty(t *testing.T) {
	none := []float32{}
	for _, g := range []MatMulOptions{{}, {M: 3}, {N: 3}, {K: 3}, {M: 3, N: 0, K: 2}} {
		require.NoError(t, MatMul(none, make([]float32, 6), make([]float32, 6), g))
	}
	c := []float32{nan, 2}
	require.NoError(t, MatMul(c, none, none, MatMulOptions{M: 1, N: 2}))
	require.Equal(t, []float32{0, 0}, c)
	c = []float32{1, 2}
	require.NoError(t, MatMul(c, none, none, MatMulOptions{M: 2, N: 1, Into: snug.Into{Beta: 3}}))
	require.Equal(t, []float32{3, 6}, c)
}

func TestMatMulErrors(t *testing.T) {
	x := make([]float32, 32)
	c, a, b := snug.ViewOf(x[:6]), snug.ViewOf(x[6:14]), snug.ViewOf(x[14:26])
	ok := MatMulOptions{M: 2, N: 3, K: 4}
	with := func(change func(*MatMulOptions)) MatMulOptions { g := ok; change(&g); return g }
	bytes := snug.SliceView(make([]uint8, 12))
	away := kerneltest.PutFloats(t, kerneltest.Backends(t)[2], snug.F32, make([]float32, 12)).View
	tests := []struct {
		name    string
		c, a, b snug.View
		g       MatMulOptions
		want    error
	}{
		{"Alpha", c, a, b, with(func(g *MatMulOptions) { g.Into.Alpha = nan }), snug.ErrConfig},
		{"Beta", c, a, b, with(func(g *MatMulOptions) { g.Into.Beta = inf }), snug.ErrConfig},
		{"c type", bytes, a, b, ok, snug.ErrDType},
		{"a type", c, bytes, b, ok, snug.ErrDType},
		{"b type", c, a, bytes, ok, snug.ErrDType},
		{"M", c, a, b, with(func(g *MatMulOptions) { g.M = -1 }), snug.ErrShape},
		{"N", c, a, b, with(func(g *MatMulOptions) { g.N = -1 }), snug.ErrShape},
		{"K", c, a, b, with(func(g *MatMulOptions) { g.K = -1 }), snug.ErrShape},
		{"short c", snug.ViewOf(x[:5]), a, b, ok, snug.ErrShape},
		{"short a", c, snug.ViewOf(x[6:13]), b, ok, snug.ErrShape},
		{"short b", c, a, snug.ViewOf(x[14:25]), ok, snug.ErrShape},
		{"LDA", c, a, b, with(func(g *MatMulOptions) { g.LDA = 3 }), snug.ErrShape},
		{"LDB", c, a, b, with(func(g *MatMulOptions) { g.LDB = 2 }), snug.ErrShape},
		{"LDC", c, a, b, with(func(g *MatMulOptions) { g.LDC = -3 }), snug.ErrShape},
		{"LDA of a transpose", c, a, b, with(func(g *MatMulOptions) { g.TransA, g.LDA = true, 1 }), snug.ErrShape},
		{"stride reaches beyond", c, a, b, with(func(g *MatMulOptions) { g.LDC = 4 }), snug.ErrShape},
		{"overflow", c, a, b, with(func(g *MatMulOptions) { g.M = math.MaxInt }), snug.ErrShape},
		{"device", c, away, b, ok, snug.ErrDevice},
		{"c overlaps a", c, snug.ViewOf(x[5:13]), b, ok, snug.ErrConfig},
		{"c overlaps b", snug.ViewOf(x[9:15]), snug.ViewOf(x[:8]), b, ok, snug.ErrConfig},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for i := range x {
				x[i] = 1
			}
			require.ErrorIs(t, MatMul(test.c, test.a, test.b, test.g), test.want)
			for i := range x {
				require.Equal(t, float32(1), x[i])
			}
		})
	}
	require.NoError(t, MatMul(c, a, b, ok))
	require.NoError(t, MatMul(c, a, a, MatMulOptions{M: 2, N: 2, K: 3, LDC: 3}), "a and b may be one")
}

//check:in race
func TestMatMulProcs(t *testing.T) {
	var want []float32
	kerneltest.WithProcs(func(procs int) {
		c := make([]float32, 70*130)
		require.NoError(t, MatMul(c, kerneltest.Uniform(1, 70*300), kerneltest.Uniform(2, 300*130), MatMulOptions{M: 70, N: 130, K: 300}))
		if procs == 1 {
			want = c
		}
		require.Equal(t, want, c)
	})
}

func matMulProperty(t *rapid.T) {
	dim := rapid.IntRange(0, 20)
	factor := rapid.SampledFrom([]float32{1, -1, 0.5, 3})
	g := MatMulOptions{
		M: dim.Draw(t, "M"), N: dim.Draw(t, "N"), K: dim.Draw(t, "K"),
		TransA: rapid.Bool().Draw(t, "TransA"), TransB: rapid.Bool().Draw(t, "TransB"),
		Into: snug.Into{Alpha: factor.Draw(t, "Alpha"), Beta: factor.Draw(t, "Beta")},
	}
	ra, ca, rb, cb := g.M, g.K, g.K, g.N
	if g.TransA {
		ra, ca = ca, ra
	}
	if g.TransB {
		rb, cb = cb, rb
	}
	pad := rapid.IntRange(1, 3)
	g.LDA, g.LDB, g.LDC = ca+pad.Draw(t, "a pad"), cb+pad.Draw(t, "b pad"), g.N+pad.Draw(t, "c pad")
	a, b, c := kerneltest.Uniform(1, extent(ra, ca, g.LDA)), kerneltest.Uniform(2, extent(rb, cb, g.LDB)), kerneltest.Uniform(3, extent(g.M, g.N, g.LDC))
	got := append([]float32{}, c...)
	require.NoError(t, MatMul(got, a, b, g))
	requireProduct(t, got[:g.M*g.LDC], c, a, b, snug.F32, g)
	require.Equal(t, c[g.M*g.LDC:], got[g.M*g.LDC:])
}

//check:in tiers
func TestMatMulProperty(t *testing.T) { rapid.Check(t, matMulProperty) }
func FuzzMatMul(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(matMulProperty)) }
