package fused

import (
	"math"
	"slices"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/half"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/internal/philox"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

//check:in tiers arm64
func TestDropoutAgainstDefinition(t *testing.T) {
	eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		for _, prob := range []float32{0, 0.1, 0.75, math.Nextafter32(1, 0)} {
			mask := DropoutMask{P: prob, Seed: 11, Tensor: 1<<40 + 5, First: uint64(cols)}
			n := rows * cols
			x := normals(newRand(uint64(n)), dt, n, 0, 1)
			words, want := make([]uint32, n), make([]float32, n)
			philox.Stream{Seed: mask.Seed, Tensor: mask.Tensor}.Words(words, mask.First)
			for i, w := range words {
				if float64(w) >= float64(prob)*0x1p32 {
					want[i] = x[i] * float32(1/(1-float64(prob)))
				}
			}
			round(dt, want)
			px, out := kerneltest.PutFloats(t, p, dt, x), kerneltest.PutFloats(t, p, dt, fill(n, 42))
			require.NoError(t, Dropout(out.View, px.View, mask))
			requireBits(t, "out", want, out.Get())
			require.NoError(t, DropoutBackward(px.View, px.View, mask))
			requireBits(t, "in place", want, px.Get())
		}
	})
}

func TestDropoutRate(t *testing.T) {
	const n = 1 << 18
	for _, p := range []float32{0, 0.1, 0.5, 0.9} {
		x := fill(n, 1)
		require.NoError(t, Dropout(x, x, DropoutMask{P: p, Seed: 1}))
		dropped, total := 0, 0.0
		for _, v := range x {
			if v == 0 {
				dropped++
			}
			total += float64(v)
		}
		sigma := math.Sqrt(float64(p) * float64(1-p) * n)
		require.InDelta(t, float64(p)*n, dropped, 5*sigma)
		require.InDelta(t, n, total, 5*sigma/float64(1-p)+1)
	}
}

func TestDropoutReplacesNonFinite(t *testing.T) {
	x := fill(100, float32(math.NaN()))
	out := make([]float32, len(x))
	require.NoError(t, Dropout(out, x, DropoutMask{P: 0.5}))
	dropped := 0
	for _, v := range out {
		require.True(t, v == 0 || v != v)
		if v == 0 {
			dropped++
		}
	}
	require.Greater(t, dropped, 20)
}

// Elements have numbers below 2^64.
func TestMaskBeyondLastNumber(t *testing.T) {
	x, out := fill(8, 1), fill(8, 3)
	require.NoError(t, Dropout(out, x, DropoutMask{P: 0.5, First: math.MaxUint64 - 8}))
	before := slices.Clone(out)
	for _, err := range []error{Dropout(out, x, DropoutMask{First: math.MaxUint64 - 7}), DropoutBackward(out, x, DropoutMask{First: math.MaxUint64})} {
		require.ErrorIs(t, err, snug.ErrConfig)
		require.Equal(t, before, out)
	}
}

// A tensor in two calls has the mask of one call, and other tensors have other
// masks.
func maskInParts(t *rapid.T) {
	mask := DropoutMask{P: 0.5, Seed: rapid.Uint64().Draw(t, "seed"), Tensor: rapid.Uint64().Draw(t, "tensor")}
	n := rapid.IntRange(64, 5000).Draw(t, "n")
	cut := rapid.IntRange(0, n).Draw(t, "cut")
	whole, parts, other := fill(n, 1), fill(n, 1), fill(n, 1)
	require.NoError(t, Dropout(whole, whole, mask))
	rest := mask
	rest.First += uint64(cut)
	require.NoError(t, Dropout(parts[:cut], parts[:cut], mask))
	require.NoError(t, Dropout(parts[cut:], parts[cut:], rest))
	requireBits(t, "parts", whole, parts)
	mask.Tensor++
	require.NoError(t, Dropout(other, other, mask))
	require.NotEqual(t, whole, other)
}

func TestMaskInParts(t *testing.T) { rapid.Check(t, maskInParts) }
func FuzzMaskInParts(f *testing.F) { f.Fuzz(rapid.MakeFuzz(maskInParts)) }

// Results so large that they are written around the caches are those of the
// parts, which are not.
func TestLargeResults(t *testing.T) {
	const cols, rows, small = 1000, half.StreamBytes/4/1000 + 1, 100
	rng := newRand(13)
	part := normals(rng, snug.F32, small*cols, 0, 1)
	gamma := normals(rng, snug.F32, cols, 1, 1)
	x := make([]float32, 0, rows*cols)
	for len(x) < rows*cols {
		x = append(x, part[:min(len(part), rows*cols-len(x))]...)
	}
	layer := func(x []float32) [][]float32 {
		var out [5][]float32
		for i := range out {
			out[i] = make([]float32, len(x))
		}
		rstd := make([]float32, len(x)/cols)
		require.NoError(t, LayerNorm(out[0], noFloats, noFloats, x, gamma, gamma, testEps))
		require.NoError(t, RMSNorm(out[1], rstd, x, gamma, testEps))
		require.NoError(t, RMSNormBackward(out[2], noFloats, x, x, rstd, gamma, GradsInto{}, noFloats))
		require.NoError(t, Add(out[3], x, x))
		require.NoError(t, Dropout(out[4], x, DropoutMask{}))
		return out[:]
	}
	want, got := layer(part), layer(x)
	for i := range want {
		for at := 0; at < len(x); at += len(part) {
			n := min(len(part), len(x)-at)
			require.True(t, slices.Equal(want[i][:n], got[i][at:at+n]), "layer %d, element %d", i, at)
		}
	}
}

// Rows wider than a block give what their blocks give alone.
func TestWideRows(t *testing.T) {
	const rows, cols = 3, 2*blockCols + 5
	rng := newRand(12)
	for _, dt := range floatTypes {
		put := func(sigma float64, n int) snug.View {
			return kerneltest.PutFloats(t, kerneltest.Backend{}, dt, normals(rng, dt, n, 0, sigma)).View
		}
		x, dy, bias := put(1, rows*cols), put(1, rows*cols), put(1, cols)
		out, dx := put(0, rows*cols), put(0, rows*cols)
		dbias, ws := make([]float32, cols), make([]float32, BiasGELUWorkspaceLen(rows, cols))
		require.NoError(t, BiasGELU(out, x, bias))
		require.NoError(t, BiasGELUBackward(dx, snug.ViewOf(dbias), dy, x, bias, snug.Into{}, snug.ViewOf(ws)))
		for c := 0; c < cols; c += 1000 {
			n := min(1000, cols-c)
			sum := make([]float32, n)
			for r := range rows {
				at, y, g := r*cols+c, put(0, n), put(0, n)
				require.NoError(t, BiasGELU(y, span(x, at, n), span(bias, c, n)))
				require.NoError(t, BiasGELUBackward(g, snug.ViewOf(sum), span(dy, at, n), span(x, at, n), span(bias, c, n), snug.Into{Beta: 1}, snug.ViewOf(ws)))
				requireBits(t, "out", load(make([]float32, n), y, 0), load(make([]float32, n), out, at))
				requireBits(t, "dx", load(make([]float32, n), g, 0), load(make([]float32, n), dx, at))
			}
			for i, s := range sum {
				require.InDelta(t, s, dbias[c+i], 1e-6)
			}
		}
	}
}
