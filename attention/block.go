package attention

import (
	"math"
	"unsafe"

	"github.com/snug-ml/snug/internal/rowwise"
)

// block is some queries of a tile of queries and a range of a tile of keys, and which of the
// keys each query sees.
type block struct {
	most     int        // queries that a block has at most
	lo, hi   int        // the queries
	from, to int        // the keys
	sees     []keyRange // of each query; tileQ in scratch
	full     bool       // every query sees every key
	mask     headMask   // unless it hides nothing in the block (full)
	partial  bool       // mask hides some of the keys in sees
	resume   int        // with a mask, the first key of the next possible range of these queries
	end      int        // end of the last range
}

// newBlock returns a block of at most the given queries, whose memory begins scratch.
func newBlock(scratch *arena, most int) block {
	f := scratch.floats(blockLen)
	return block{most: most, sees: unsafe.Slice((*keyRange)(unsafe.Pointer(unsafe.SliceData(f))), tileQ)}
}

// blockLen is the number of float32 elements that newBlock takes.
const blockLen = tileQ * int(unsafe.Sizeof(keyRange{})) / 4

// keyRange is keys Lo to Hi-1, counted from a block's first.
type keyRange = rowwise.Range

// begin makes next begin with query q0.
func (w *block) begin(q0 int) { w.lo, w.hi, w.resume, w.end = q0, q0, 0, 0 }

// next moves w on to the following queries, up to q1-1, that see any of the keys k0 to k1-1,
// and reports whether there are any. A block has at most w.most queries, and where the mask
// cuts the tile at most maskQ, so that few products are wasted. With a Mask a block has the queries of one row of
// mask tiles and a range of keys without hidden tiles. A row can have several such ranges.
func (w *block) next(s *sequence, m headMask, q1, k0, k1 int) bool {
	first, last := s.queries(k0, k1)
	last = min(last, q1)
	if w.mask = m; m.m != nil {
		return w.nextTiles(s, first, last, k0, k1)
	}
	w.lo = max(w.hi, first)
	if w.lo >= last {
		return false
	}
	w.hi = min(w.lo+w.most, last)
	lo, _ := s.keys(w.hi - 1)
	_, hi := s.keys(w.lo)
	if lo > k0 || hi < k1 {
		w.hi = min(w.lo+maskQ, last)
	}
	lo, _ = s.keys(w.lo)
	_, hi = s.keys(w.hi - 1)
	w.set(s, max(lo, k0), min(hi, k1))
	return true
}

// nextTiles is next with a Mask, of queries first to last-1.
func (w *block) nextTiles(s *sequence, first, last, k0, k1 int) bool {
	for {
		if w.resume >= w.end {
			w.lo = max(w.hi, first)
			if w.lo >= last {
				return false
			}
			w.hi = min((w.lo/MaskTile+1)*MaskTile, last)
			lo, _ := s.keys(w.lo)
			_, hi := s.keys(w.hi - 1)
			w.resume, w.end = max(lo, k0), min(hi, k1)
		}
		from := w.run(w.resume, false)
		w.resume = w.run(from, true)
		if from < w.resume {
			w.set(s, from, w.resume)
			return true
		}
	}
}

// run returns the first key from k on, or end, whose tile is hidden, or not hidden.
func (w *block) run(k int, hide bool) int {
	for k < w.end && (w.mask.tile(w.lo, k) == hidden) != hide {
		k = (k/MaskTile + 1) * MaskTile
	}
	return min(k, w.end)
}

// set gives w the keys from from to to-1.
func (w *block) set(s *sequence, from, to int) {
	w.from, w.to, w.full, w.partial = from, to, true, false
	for i := range w.hi - w.lo {
		lo, hi := s.keys(w.lo + i)
		r := keyRange{Lo: min(max(lo-from, 0), to-from), Hi: min(max(hi-from, 0), to-from)}
		w.sees[i] = r
		w.full = w.full && r == keyRange{Lo: 0, Hi: to - from}
	}
	for k := from; w.mask.m != nil && k < to; k = (k/MaskTile + 1) * MaskTile {
		w.partial = w.partial || w.mask.tile(w.lo, k) >= partial
	}
	w.full = w.full && !w.partial
}

// keys returns the number of keys.
func (w *block) keys() int { return w.to - w.from }

// common returns the range of keys that all queries see, empty if lo >= hi.
func (w *block) common() keyRange {
	if w.partial {
		return keyRange{}
	}
	last := w.hi - w.lo - 1
	return keyRange{Lo: w.sees[last].Lo, Hi: w.sees[0].Hi} // both grow with the query
}

// of returns the rows of the block's queries in a tile that begins at query q0, and factor
// the same rows of a factor.
func (w *block) of(t tile, q0 int) tile         { return t.from(w.lo - q0).top(w.hi - w.lo) }
func (w *block) factor(f factor, q0 int) factor { return f.from(w.lo - q0).top(w.hi - w.lo) }

// ofKeys returns the rows of the block's keys in a tile that begins at key k0, and
// factorKeys the same rows of a factor.
func (w *block) ofKeys(t tile, k0 int) tile         { return t.from(w.from - k0).top(w.keys()) }
func (w *block) factorKeys(f factor, k0 int) factor { return f.from(w.from - k0).top(w.keys()) }

// row returns the part of x, a row of query number i of the block, for the keys that the
// query sees.
func (w *block) row(x []float32, i int) []float32 { return x[w.sees[i].Lo:w.sees[i].Hi] }

// hide sets the elements of query number i at keys that the Mask hides to x.
func (w *block) hide(row []float32, i int, x float32) {
	if !w.partial {
		return
	}
	for j := w.sees[i].Lo; j < w.sees[i].Hi; j++ {
		if !w.shows(i, j) {
			row[j] = x
		}
	}
}

// clear sets the elements of query number i at keys that it does not see to 0.
func (w *block) clear(row []float32, i int) {
	clear(row[:w.sees[i].Lo])
	clear(row[w.sees[i].Hi:])
	w.hide(row, i, 0)
}

// shows reports whether the Mask shows key number j of the block to query number i.
func (w *block) shows(i, j int) bool {
	if !w.partial {
		return true
	}
	t := w.mask.tile(w.lo+i, w.from+j)
	return t == seen || w.mask.word(t, w.lo+i)>>((w.from+j)%MaskTile)&1 != 0
}

// each calls f for every query and every key that it sees, in order.
func (w *block) each(p tile, f func(i, j int, pij float32)) {
	for i := range p.rows {
		for j := w.sees[i].Lo; j < w.sees[i].Hi; j++ {
			if w.shows(i, j) {
				f(i, j, p.row(i)[j])
			}
		}
	}
}

var negInf = float32(math.Inf(-1))
