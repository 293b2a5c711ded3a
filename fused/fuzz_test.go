package fused

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Two chunk sizes give the same loss and dx, and a frozen w changes neither.
func chunksAgree(t *rapid.T) {
	rows, vocab, cols := rapid.IntRange(0, 20).Draw(t, "rows"), rapid.IntRange(1, 40).Draw(t, "vocab"), rapid.IntRange(1, 20).Draw(t, "cols")
	rng := newRand(rapid.Uint64().Draw(t, "seed"))
	sigma := rapid.SampledFrom([]float64{0, 1e-3, 1, 30}).Draw(t, "sigma")
	x, w := normals(rng, snug.F32, rows*cols, 0, sigma), normals(rng, snug.F32, vocab*cols, 0, 1)
	targets := rapid.SliceOfN(rapid.Int32Range(-2, int32(vocab-1)), rows, rows).Draw(t, "targets")
	tile := rapid.IntRange(0, vocab+1).Draw(t, "tile")
	limit := rapid.SampledFrom([]float32{0, 0.5, 30}).Draw(t, "cap")
	weights := rapid.SliceOfN(rapid.Float32Range(0, 4), rows, rows).Draw(t, "weights")
	var first Loss
	var firstDx []float32
	for i, dw := range [][]float32{make([]float32, vocab*cols), nil} {
		c := CrossEntropy{Vocab: vocab, Cols: cols, Chunk: rapid.IntRange(0, rows+1).Draw(t, "chunk"), Tile: tile, Cap: limit, Weights: weights}
		dx, ws := fill(rows*cols, 42), make([]float32, c.WorkspaceLen(rows))
		loss, err := CrossEntropyBackward(c, dx, dw, x, w, targets, 1, snug.Into{}, ws)
		require.NoError(t, err)
		require.GreaterOrEqual(t, loss.Sum, -4e-5*float64(rows))
		if i == 0 {
			first, firstDx = loss, dx
		}
		require.Equal(t, first, loss)
		requireBits(t, "dx", firstDx, dx)
	}
}

func TestChunksAgree(t *testing.T) { rapid.Check(t, chunksAgree) }
func FuzzChunksAgree(f *testing.F) { f.Fuzz(rapid.MakeFuzz(chunksAgree)) }

// Accumulating a batch in two calls is accumulating its rows in order.
func scatterInParts(t *rapid.T) {
	const vocab = 5
	cols := rapid.IntRange(1, 150).Draw(t, "cols")
	ids := rapid.SliceOfN(rapid.Int32Range(0, vocab-1), 0, 30).Draw(t, "ids")
	cut := rapid.IntRange(0, len(ids)).Draw(t, "cut")
	dy := random(len(ids) * cols)
	whole, inParts := random(vocab*cols), random(vocab*cols)
	require.NoError(t, EmbeddingBackward(whole, dy, ids, cols, snug.Into{Alpha: 0.3, Beta: 1}))
	require.NoError(t, EmbeddingBackward(inParts, dy[:cut*cols], ids[:cut], cols, snug.Into{Alpha: 0.3, Beta: 1}))
	require.NoError(t, EmbeddingBackward(inParts, dy[cut*cols:], ids[cut:], cols, snug.Into{Alpha: 0.3, Beta: 1}))
	requireBits(t, "dtable", whole, inParts)
}

func TestScatterInParts(t *testing.T) { rapid.Check(t, scatterInParts) }
func FuzzScatterInParts(f *testing.F) { f.Fuzz(rapid.MakeFuzz(scatterInParts)) }

// A row's result does not depend on the rows around it.
func rowsAreIndependent(t *rapid.T) {
	cols, rows := rapid.IntRange(1, 100).Draw(t, "cols"), rapid.IntRange(1, 200).Draw(t, "rows")
	r := rapid.IntRange(0, rows-1).Draw(t, "row")
	rng := newRand(rapid.Uint64().Draw(t, "seed"))
	x, dy := normals(rng, snug.F32, rows*cols, 1, 2), normals(rng, snug.F32, rows*cols, 0, 1)
	gamma, beta := normals(rng, snug.F32, cols, 1, 1), normals(rng, snug.F32, cols, 0, 1)
	forward := func(x, dy []float32) (out, dx []float32) {
		n := len(x) / cols
		out, dx = make([]float32, len(x)), make([]float32, len(x))
		mean, rstd := make([]float32, n), make([]float32, n)
		require.NoError(t, LayerNorm(out, mean, rstd, x, gamma, beta, testEps))
		require.NoError(t, LayerNormBackward(dx, noFloats, noFloats, dy, x, mean, rstd, gamma, GradsInto{}, noFloats))
		require.NoError(t, BiasGELU(out, out, beta))
		require.NoError(t, BiasGELUBackward(dx, noFloats, dx, x, beta, snug.Into{}, noFloats))
		return out, dx
	}
	out, dx := forward(x, dy)
	outRow, dxRow := forward(x[r*cols:][:cols], dy[r*cols:][:cols])
	requireBits(t, "out", outRow, out[r*cols:][:cols])
	requireBits(t, "dx", dxRow, dx[r*cols:][:cols])
}

func TestRowsAreIndependent(t *testing.T) { rapid.Check(t, rowsAreIndependent) }
func FuzzRowsAreIndependent(f *testing.F) { f.Fuzz(rapid.MakeFuzz(rowsAreIndependent)) }
