package attention

import "math"

// softmax is the state of the online softmax of a tile of queries: the sum of
// the weighted values so far, scaled by 2^−max, for scores in units of log 2.
type softmax struct {
	max, sum []float32 // of every query
	acc      tile
}

func newSoftmax(room *arena, rows, dim int) softmax {
	s := softmax{room.floats(tileQ)[:rows], room.floats(tileQ)[:rows], room.tile(tileQ, dim).top(rows)}
	for i := range s.max {
		s.max[i], s.sum[i] = float32(math.Inf(-1)), 0
	}
	s.acc.clear()
	return s
}

// step turns the scores of a tile of keys into weights, 0 for keys that a query
// does not see, and rescales the sums to the new maxima.
func (s *softmax) step(w *window, scores tile) {
	for i := range scores.rows {
		row := scores.row(i)
		seen := row[:w.sees[i]]
		clear(row[len(seen):])
		m := maximum(s.max[i], seen)
		base := m
		if math.IsInf(float64(m), -1) {
			base = 0 // −Inf − −Inf would be NaN
		}
		rescale := exp2(s.max[i] - base)
		s.max[i] = m
		s.sum[i] = s.sum[i]*rescale + exp2Row(seen, base)
		if rescale != 1 {
			scaleRow(s.acc.row(i), rescale)
		}
	}
}

// finish divides acc by the sums and stores the logarithms of the sums in lse,
// unless it is nil.
func (s *softmax) finish(lse []float32) {
	for i, sum := range s.sum {
		if sum == 0 { // nothing seen, or only scores of −Inf
			clear(s.acc.row(i))
		} else {
			scaleRow(s.acc.row(i), 1/sum)
		}
		if lse != nil {
			lse[i] = float32((float64(s.max[i]) + math.Log2(float64(sum))) * math.Ln2)
		}
	}
}

// maximum returns the greatest of m and the elements of x, without NaNs.
func maximum(m float32, x []float32) float32 {
	for _, v := range x {
		if v > m {
			m = v
		}
	}
	return m
}

func scaleRow(x []float32, a float32) {
	for i := range x {
		x[i] *= a
	}
}
