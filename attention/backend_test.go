package attention

import (
	"fmt"
	"math"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
)

// Shapes on every backend: lengths beside the multiples of tiles, dimensions beside
// those of the pieces in which tiles are multiplied, and each mask with more keys
// than queries and with fewer.
//
//check:in tiers arm64
func TestShapesOnBackends(t *testing.T) {
	strided := Options{Batch: 2, Heads: 2, KVHeads: 1, SeqQ: 20, SeqK: 67, Dim: 200, DimV: 130}
	strided.Q = Strides{Batch: 201, Head: 402, Row: 804}
	strided.K = Strides{Batch: 70 * 203, Head: 1, Row: 203}
	strided.V = Strides{Batch: 130, Head: 1, Row: 260}
	strided.Out = Strides{Batch: 40 * 131, Head: 131, Row: 2 * 131}
	cases := []Options{
		{Batch: 1, Heads: 2, SeqQ: 3, SeqK: 70, Dim: 1},
		{Batch: 1, Heads: 3, KVHeads: 1, SeqQ: 65, SeqK: 64, Dim: 33, DimV: 65},
		{Batch: 1, Heads: 1, SeqQ: 64, SeqK: 129, Dim: 64},
		{Batch: 1, Heads: 1, SeqQ: 70, SeqK: 33, Dim: 128},
		strided,
		{Batch: 1, Heads: 4, KVHeads: 2, SeqQ: 1, SeqK: 130, Dim: 5, DimV: 200},
		{Batch: 2, Heads: 1, SeqQ: 129, SeqK: 1, Dim: 9},
	}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, c := range cases {
			mask, dt := masks[i%3], dtypes[(i+i/3)%3]
			c.Causal, c.Align = mask.causal, mask.align
			t.Run(shapeName(c, dt), func(t *testing.T) { newProblem(t, c, dt, uint64(20+i)).check(t, backend, dt) })
		}
	})
}

func shapeName(c Options, dt snug.DType) string {
	mask := "full"
	if c.Causal {
		mask = []string{"bottomright", "topleft"}[c.Align]
	}
	return fmt.Sprintf("%dx%d/%d/%s/%v/h%d", c.SeqQ, c.SeqK, c.Dim, mask, dt, c.Heads)
}

//check:in tiers arm64
func TestNonFiniteOnBackends(t *testing.T) {
	c := Options{Batch: 1, Heads: 1, SeqQ: 40, SeqK: 70, Dim: 3}
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i, bad := range []float64{math.NaN(), math.Inf(1)} {
			for target := range 4 {
				mask := masks[(i+target)%3]
				c.Causal, c.Align = mask.causal, mask.align
				newProblem(t, c, snug.F32, 9).checkNonFinite(t, backend, snug.F32, target, []float64{0.3, 0.99}[i], bad)
			}
		}
	})
}

// unitCases are tensors at multiples of 16 bytes with rows of up to 256 elements, for which
// devices have matrix units: rows as long as tiles, shorter ones, and rows of values of
// another length than those of keys.
func unitCases() []Options {
	return []Options{
		{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 67, SeqK: 131, Dim: 64},
		{Batch: 1, Heads: 1, SeqQ: 131, SeqK: 100, Dim: 128},
		PackedQKV(Options{Batch: 2, Heads: 2, KVHeads: 1, SeqQ: 70, Dim: 64}),
		{Batch: 1, Heads: 1, SeqQ: 33, SeqK: 67, Dim: 128},
		{Batch: 1, Heads: 1, SeqQ: 140, SeqK: 99, Dim: 64},
		SequenceMajor(Options{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 15, SeqK: 50, Dim: 128}),
		{Batch: 1, Heads: 1, SeqQ: 67, SeqK: 70, Dim: 256},
		{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 17, SeqK: 50, Dim: 256},
		PackedQKV(Options{Batch: 1, Heads: 1, SeqQ: 20, Dim: 256}),
		{Batch: 1, Heads: 1, SeqQ: 18, SeqK: 50, Dim: 192, DimV: 128},
		{Batch: 1, Heads: 1, SeqQ: 21, SeqK: 33, Dim: 8, DimV: 48},
		{Batch: 2, Heads: 1, SeqQ: 18, SeqK: 35, Dim: 72, DimV: 120},
	}
}

// checkUnits runs cases of unitCases with masks and types in turns.
func checkUnits(t *testing.T, backend kerneltest.Backend, cases []Options) {
	for i, c := range cases {
		mask, dt := masks[i%3], []snug.DType{snug.BF16, snug.F16}[(i+i/3)%2]
		c.Causal, c.Align = mask.causal, mask.align
		t.Run(shapeName(c, dt), func(t *testing.T) {
			p := newProblem(t, c, dt, uint64(40+i))
			p.start = aligning
			p.check(t, backend, dt)
		})
	}
}

// tileCases are more tiles of queries and of keys than unitCases, for kernels of large ones.
func tileCases() []Options {
	return []Options{
		{Batch: 1, Heads: 1, SeqQ: 300, SeqK: 270, Dim: 64},
		{Batch: 1, Heads: 2, KVHeads: 1, SeqQ: 1, SeqK: 260, Dim: 128},
		{Batch: 1, Heads: 1, SeqQ: 200, SeqK: 1, Dim: 128},
		{Batch: 1, Heads: 1, SeqQ: 131, SeqK: 460, Dim: 128},
		{Batch: 1, Heads: 1, SeqQ: 280, SeqK: 100, Dim: 256},
		{Batch: 1, Heads: 4, KVHeads: 1, SeqQ: 100, SeqK: 100, Dim: 128},
		{Batch: 1, Heads: 1, SeqQ: 400, SeqK: 700, Dim: 64},
		{Batch: 1, Heads: 1, SeqQ: 300, SeqK: 60, Dim: 64},
		{Batch: 2, Heads: 2, SeqQ: 129, SeqK: 129, Dim: 128},
	}
}

//check:in checked metal24
//check:not emulated
func TestMatrixUnits(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		checkUnits(t, backend, unitCases())
		if !onHost(backend) && !backend.Emulated {
			checkUnits(t, backend, tileCases())
			checkHidden(t, backend)
		}
	})
}

// checkHidden checks what a mask hides, with the tiles of all head dimensions: row 149 of
// queries from the later keys of tiles of 64 and of 128, row 149 of keys from queries of an
// earlier 64 in tiles of 192, and the last row; half of that with -short.
func checkHidden(t *testing.T, backend kerneltest.Backend) {
	for i, dim := range []int{64, 128, 256} {
		for target := range 4 {
			for j, at := range []float64{0.65, 0.999} {
				if !kerneltest.Full() && (i+target+j)%2 == 0 {
					continue
				}
				c := Options{Batch: 1, Heads: 1, SeqQ: 230, SeqK: 230, Dim: dim, Causal: true}
				dt := []snug.DType{snug.BF16, snug.F16}[(i+target)%2]
				p := newProblem(t, c, dt, 50)
				p.start = aligning
				p.checkNonFinite(t, backend, dt, target, at, []float64{math.NaN(), math.Inf(-1)}[(target/2+j)%2])
			}
		}
	}
}

// What the mask hides stays hidden from matrix units too.
func TestNonFiniteInMatrixUnits(t *testing.T) {
	kerneltest.Each(t, func(t *testing.T, backend kerneltest.Backend) {
		for i := range 8 {
			n := []int{70, 40}[i/4]
			c := Options{Batch: 1, Heads: 1, SeqQ: n, SeqK: n, Dim: []int{64, 256}[i/4], Causal: true}
			target, dt := i%4, []snug.DType{snug.BF16, snug.F16}[i%2]
			p := newProblem(t, c, dt, 50)
			p.start = aligning
			p.checkNonFinite(t, backend, dt, target, []float64{0.3, 0.99, 0.99, 0.3}[target], []float64{math.NaN(), math.Inf(-1)}[target/2])
		}
	})
}
