package fused

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

//check:in tiers arm64
func TestEmbeddingAgainstDefinition(t *testing.T) {
	const vocab, context = 11, 6
	eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
		rng := newRand(uint64(rows*1000 + cols))
		table, pos := normals(rng, dt, vocab*cols, 0, 1), normals(rng, dt, context*cols, 0, 1)
		ids, positions := tokens(rng, rows, vocab), tokens(rng, rows, context)
		rowsOf, sums := make([]float32, 0, rows*cols), make([]float32, 0, rows*cols)
		for i, id := range ids {
			for c := range cols {
				x := table[int(id)*cols+c]
				rowsOf = append(rowsOf, x)
				sums = append(sums, x+pos[int(positions[i])*cols+c])
			}
		}
		ptable, ppos := kerneltest.PutFloats(t, p, dt, table), kerneltest.PutFloats(t, p, dt, pos)
		out := kerneltest.PutFloats(t, p, dt, fill(rows*cols, 42))
		require.NoError(t, Embedding(out.View, ptable.View, ids, snug.View{}, nil, cols))
		requireBits(t, "rows", rowsOf, out.Get())
		require.NoError(t, Embedding(out.View, ptable.View, ids, ppos.View, positions, cols))
		requireBits(t, "sums", round(dt, sums), out.Get())
	})
}

//check:in tiers arm64
func TestEmbeddingCopiesBits(t *testing.T) {
	signaling := []snug.Float16{0x7c01, 0xfdff, 0x8000, 0x0001}
	out := make([]snug.Float16, 4)
	require.NoError(t, Embedding(out, signaling, []int32{1, 0}, nil, nil, 2))
	require.Equal(t, []snug.Float16{0x8000, 0x0001, 0x7c01, 0xfdff}, out)
}

//check:in tiers arm64 race
func TestEmbeddingBackwardAgainstDefinition(t *testing.T) {
	const vocab, alpha = 11, 0.75
	for _, beta := range []float32{0, 0.5, 1} {
		eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
			rng := newRand(uint64(rows*1000 + cols))
			dy, want := normals(rng, dt, rows*cols, 0, 1), normals(rng, snug.F32, vocab*cols, 0, 1)
			ids := tokens(rng, rows, vocab-1) // the last row gets nothing
			pdy, dtable := kerneltest.PutFloats(t, p, dt, dy), kerneltest.Put(t, p, want)
			require.NoError(t, EmbeddingBackward(dtable.View, pdy.View, ids, cols, snug.Into{Alpha: alpha, Beta: beta}))
			for i := range want {
				if want[i] *= beta; beta == 0 {
					want[i] = 0 // of both signs
				}
			}
			for i, id := range ids {
				for c := range cols {
					want[int(id)*cols+c] += float32(alpha * dy[i*cols+c])
				}
			}
			requireBits(t, "dtable", want, dtable.Get())
		})
	}
}

// TestEmbeddingBackwardOfEqualTokens: on devices the tokens are sorted, and warps look for the end of those that are equal.
//
//check:in race
func TestEmbeddingBackwardOfEqualTokens(t *testing.T) {
	const vocab, rows, cols = 9, 330, 132
	rng := newRand(5)
	dy := normals(rng, snug.BF16, rows*cols, 0, 1)
	ids := tokens(rng, rows, vocab)
	for i := range ids {
		switch {
		case i%3 > 0:
			ids[i] = 4 // 220 of them and more
		case i%5 == 0:
			ids[i] = vocab - 1
		}
	}
	want := make([]float32, vocab*cols)
	for i, id := range ids {
		for c := range cols {
			want[int(id)*cols+c] += float32(0.3 * dy[i*cols+c])
		}
	}
	kerneltest.Each(t, func(t *testing.T, p kerneltest.Backend) {
		dtable := kerneltest.Put(t, p, make([]float32, vocab*cols))
		pdy := kerneltest.PutFloats(t, p, snug.BF16, dy)
		require.NoError(t, EmbeddingBackward(dtable.View, pdy.View, ids, cols, snug.Into{Alpha: 0.3, Beta: 1}))
		requireBits(t, "dtable", want, dtable.Get())
	})
}
