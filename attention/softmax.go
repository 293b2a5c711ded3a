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
	scratch  []float32 // for base, rescale and sums of a block
}

// newSoftmax starts with a sink: a score without a value, −Inf if there is none.
func newSoftmax(scratch *arena, rows, dim int, sink float32) softmax {
	s := softmax{
		max: scratch.floats(tileQ)[:rows], sum: scratch.floats(tileQ)[:rows],
		acc: scratch.tile(tileQ, up(dim)).top(rows).left(dim), scratch: scratch.floats(3 * tileQ),
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
	clear(s.acc.x)
	return s
}

// softmaxLen returns the float32 elements that newSoftmax takes.
func softmaxLen(dim int) int { return tileQ * (up(dim) + 5) }

// rescale moves the state of some queries, from number lo on, on to their maxima over a tile of
// scores, and returns these as the base of weights. scale converts scores to units of log 2. It
// computes the maxima of all rows first, so that no row waits for its own.
func (s *softmax) rescale(lo int, t rowwise.Tile, scale float32) (base []float32) {
	k, n := rowwise.Registry.Best(), len(t.Sees)
	maxima, sums := s.max[lo:][:n], s.sum[lo:][:n]
	base, factors := s.scratch[:n], s.scratch[tileQ:][:n]
	copy(factors, maxima)
	k.MaxRows(maxima, t, scale)
	for i, most := range maxima {
		base[i] = most
		if math.IsInf(float64(most), -1) {
			base[i] = 0 // −Inf − −Inf would be NaN
		}
		factors[i] -= base[i]
	}
	k.Exp2Sum(factors, 1, 0)
	for i, a := range factors {
		if a != 1 && sums[i] != 0 {
			k.Scale(s.acc.row(lo+i), s.acc.row(lo+i), a)
		}
		sums[i] *= a
	}
	return base
}

// blockSums returns where the sums of n weights go that add will add.
func (s *softmax) blockSums(n int) []float32 { return s.scratch[2*tileQ:][:n] }

// addSums adds sums of weights of queries from number lo on.
func (s *softmax) addSums(lo int, sums []float32) {
	for i, x := range sums {
		s.sum[lo+i] += x
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
