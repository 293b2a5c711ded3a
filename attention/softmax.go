package attention

import (
	"math"

	"github.com/snug-ml/snug/internal/rowwise"
)

// softmax is the state of the online softmax of a tile of queries: the sum of
// the weighted values so far, scaled by 2^−max, for scores in units of log 2.
type softmax struct {
	max, sum []float32 // of every query
	acc      tile
	scratch  []float32 // for base and rescale in step
}

// newSoftmax starts with a sink: a score without a value, −Inf if there is none.
func newSoftmax(scratch *arena, rows, dim int, sink float32) softmax {
	s := softmax{
		max: scratch.floats(tileQ)[:rows], sum: scratch.floats(tileQ)[:rows],
		acc: scratch.tile(tileQ, dim).top(rows), scratch: scratch.floats(2 * tileQ),
	}
	most, sum := negInf, float32(0)
	switch {
	case sink < math.MaxFloat32 && sink > negInf:
		most, sum = float32(float64(sink)*math.Log2E), 1
	case sink != negInf: // NaN for all
		sum = float32(math.NaN())
	}
	for i := range s.max {
		s.max[i], s.sum[i] = most, sum
	}
	s.acc.clear()
	return s
}

// step turns the scores of w's queries and keys into weights, 0 for keys that a query does
// not see, and rescales the sums to the new maxima. The tile of queries begins at q0. scale
// converts scores to units of log 2. step computes the maxima of all rows first, so that no
// row waits for its own.
func (s *softmax) step(w *block, q0 int, products tile, scale float32) {
	k, n := rowwise.Registry.Best(), products.rows
	maxima, sums := s.max[w.lo-q0:][:n], s.sum[w.lo-q0:][:n]
	base, rescale := s.scratch[:n], s.scratch[tileQ:][:n]
	for i, before := range maxima {
		seen := w.row(products.row(i), i)
		maxima[i] = k.Max(seen, scale, before)
		base[i] = maxima[i]
		if math.IsInf(float64(maxima[i]), -1) {
			base[i] = 0 // −Inf − −Inf would be NaN
		}
		rescale[i] = before - base[i]
	}
	k.Exp2Sum(rescale, 1, 0)
	acc := w.of(s.acc, q0)
	for i, a := range rescale {
		if a != 1 && sums[i] != 0 {
			k.Scale(acc.row(i), acc.row(i), a)
		}
		sums[i] = float32(a*sums[i]) + k.Exp2Sum(w.row(products.row(i), i), scale, base[i])
		w.clear(products.row(i), i)
	}
}

// finish sets out, which may be acc, to acc divided by the sums and stores the
// logarithms of the sums in lse, unless it is nil.
func (s *softmax) finish(out tile, lse []float32) {
	k := rowwise.Registry.Best()
	for i, sum := range s.sum {
		if sum == 0 { // nothing seen, or only scores of −Inf
			clear(out.row(i))
		} else {
			k.Scale(out.row(i), s.acc.row(i), 1/sum)
		}
		if lse != nil {
			lse[i] = float32((float64(s.max[i]) + math.Log2(float64(sum))) * math.Ln2)
		}
	}
}
