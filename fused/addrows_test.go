package fused

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// somePairs returns a pair for about half of the rows.
func somePairs(rows, chosen int) (pairs []int32) {
	rng := newRand(uint64(rows))
	for i := range rows {
		if rng.IntN(2) == 0 {
			pairs = append(pairs, int32(i*chosen+rng.IntN(chosen)))
		}
	}
	return pairs
}

//check:in tiers arm64
func TestAddRowsAgainstDefinition(t *testing.T) {
	const chosen = 3
	for _, weighted := range []bool{true, false} {
		eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
			rng := newRand(uint64(rows*1000 + cols))
			pairs := somePairs(rows, chosen)
			y, x, weights := normals(rng, dt, rows*cols, 0, 1), normals(rng, dt, len(pairs)*cols, 0, 1), normals(rng, snug.F32, rows*chosen, 0, 1)
			want := append([]float32{}, y...)
			for i, pair := range pairs {
				w := float32(1)
				if weighted {
					w = weights[pair]
				}
				for c := range cols {
					want[int(pair)/chosen*cols+c] += float32(w * x[i*cols+c])
				}
			}
			put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, p, dt, v) }
			py, px, pw := put(y), put(x), kerneltest.Put(t, p, weights).View
			if !weighted {
				pw = snug.View{}
			}
			require.NoError(t, AddRows(py.View, px.View, pw, pairs, chosen, cols))
			requireBits(t, "y", round(dt, want), py.Get())
		})
	}
}

//check:in tiers arm64 race
func TestAddRowsBackwardAgainstDefinition(t *testing.T) {
	const chosen = 3
	for _, weighted := range []bool{true, false} {
		eachShape(t, func(t *testing.T, p kerneltest.Backend, dt snug.DType, rows, cols int) {
			rng := newRand(uint64(rows*1000 + cols))
			pairs := somePairs(rows, chosen)
			n := len(pairs) * cols
			dy, x, weights := normals(rng, dt, rows*cols, 0, 1), normals(rng, dt, n, 0, 1), normals(rng, snug.F32, rows*chosen, 0, 1)
			wantX, wantW, bound := make([]float32, n), float64s(fill(rows*chosen, untouched)), make([]float64, rows*chosen)
			for i, pair := range pairs {
				w := float32(1)
				if weighted {
					w = weights[pair]
				}
				sum, size := 0.0, 0.0
				for c := range cols {
					d := dy[int(pair)/chosen*cols+c]
					wantX[i*cols+c] = w * d
					term := float64(d) * float64(x[i*cols+c])
					sum += term
					size += max(term, -term)
				}
				wantW[pair], bound[pair] = sum, float64(cols/4+4)*u*size
			}
			put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, p, dt, v) }
			pdy, px, pdx := put(dy), put(x), put(fill(n, untouched))
			pw, pdw := kerneltest.Put(t, p, weights).View, kerneltest.Put(t, p, fill(rows*chosen, untouched))
			if !weighted {
				pw = snug.View{}
			}
			require.NoError(t, AddRowsBackward(pdx.View, snug.View{}, pdy.View, snug.View{}, pw, pairs, chosen, cols))
			requireBits(t, "dx alone", round(dt, wantX), pdx.Get())
			require.NoError(t, AddRowsBackward(px.View, pdw.View, pdy.View, px.View, pw, pairs, chosen, cols))
			requireBits(t, "dx is x", pdx.Get(), px.Get())
			requireClose(t, "dweights", wantW, bound, pdw.Get())
		})
	}
}

// Rows longer than a block.
func TestAddRowsOfLongRows(t *testing.T) {
	const cols = 2*blockCols + 3
	for _, dt := range floatTypes {
		put := func(v []float32) *kerneltest.Floats { return kerneltest.PutFloats(t, kerneltest.Backend{}, dt, v) }
		y, x, dx := put(fill(2*cols, 2)), put(fill(cols, 3)), put(fill(cols, untouched))
		weights, dweights := snug.ViewOf([]float32{9, 0.5}), make([]float32, 2)
		require.NoError(t, AddRows(y.View, x.View, weights, []int32{1}, 1, cols))
		requireBits(t, "y", append(fill(cols, 2), fill(cols, 3.5)...), y.Get())
		require.NoError(t, AddRowsBackward(dx.View, snug.ViewOf(dweights), y.View, x.View, weights, []int32{1}, 1, cols))
		requireBits(t, "dx", fill(cols, 1.75), dx.Get())
		requireBits(t, "dweights", []float32{0, 3.5 * 3 * cols}, dweights)
	}
}

func TestAddRowsWrongPairs(t *testing.T) {
	for _, pairs := range [][]int32{{0, 4, 6}, {0, 2, 1}, {0, 2, 3}, {0, 2, -1}} {
		c := newCall()
		c.ids = pairs
		for _, name := range []string{"AddRows", "AddRowsBackward"} {
			requireRefused(t, name, c, snug.ErrShape, name, "pairs[")
		}
	}
	c := newCall()
	c.router.Chosen = 0
	requireRefused(t, "AddRows", c, snug.ErrShape, "0 pairs a row")
}
