package attention

import "slices"

// Rows is a range of rows of a sequence, Lo to Hi-1.
type Rows struct{ Lo, Hi int }

// Len returns the number of rows.
func (r Rows) Len() int { return r.Hi - r.Lo }

// RingRows returns the rows of a sequence of n rows that a rank has in [RingForward]. The tensors
// of the rank hold the first range and then the second.
//
// The sequence is cut into 2·size pieces, whose lengths differ by at most one, the longer ones
// first. Rank r has pieces r and 2·size-1-r. A rank has fewer than two pieces with rows if n is
// less than 2·size. Both ranges are empty for a negative n, a size above 65536 and a rank outside
// of 0 to size-1.
func RingRows(n, rank, size int) [2]Rows {
	if n < 0 || rank < 0 || rank >= size || size > maxRanks {
		return [2]Rows{}
	}
	pieces := 2 * size
	piece := func(i int) Rows {
		cut := func(i int) int { return n/pieces*i + min(i, n%pieces) }
		return Rows{cut(i), cut(i + 1)}
	}
	return [2]Rows{piece(rank), piece(pieces - 1 - rank)}
}

// ringLen returns the number of rows of a rank.
func ringLen(n, rank, size int) int {
	rows := RingRows(n, rank, size)
	return rows[0].Len() + rows[1].Len()
}

// span is rows of the whole sequence that are computed together.
type span struct {
	Rows
	at int // the first of them among the rows of its rank
	in int // and among the rows of the rank's spans
}

// spans are the rows of a rank, in order: its two pieces, each cut in two at the end of the document that began
// before the piece. Then all documents of a span have the same offset: the first span of a piece has a part of one
// document, and in the second all documents begin. Some spans are empty.
type spans [4]span

// spansOf returns the spans of a rank, of n rows that may be packed. Rows of no document are in no span.
func spansOf(n int, starts []int, rank, size int) (all spans) {
	at, in := 0, 0
	for i, piece := range RingRows(n, rank, size) {
		lo, hi := piece.Lo, piece.Hi
		cut := lo
		if starts != nil {
			hi = max(lo, min(hi, starts[len(starts)-1]))
			if next, begins := slices.BinarySearch(starts, lo); !begins && next < len(starts) {
				cut = min(hi, starts[next])
			}
		}
		all[2*i] = span{Rows{lo, cut}, at, in}
		all[2*i+1] = span{Rows{cut, hi}, at + cut - lo, in + cut - lo}
		at, in = at+piece.Len(), in+hi-lo
	}
	return all
}

// len returns the rows of all spans.
func (s *spans) len() int { return s[3].in + s[3].Len() }

// localStarts returns where the documents begin in a span.
func (s span) localStarts(starts []int) []int {
	local := make([]int, len(starts))
	for i, at := range starts {
		local[i] = min(max(at-s.Lo, 0), s.Len())
	}
	return local
}

// document returns the number of the document that has a row.
func document(starts []int, row int) int {
	next, begins := slices.BinarySearch(starts, row)
	for begins && next+1 < len(starts) && starts[next+1] == row { // empty documents
		next++
	}
	if begins {
		return next
	}
	return next - 1
}

// pair returns the Options for the queries of one span and the keys of another, and whether any query sees a key. The
// tensors are contiguous, and Sinks and the starts of documents are left out. No span is empty. c is for the whole
// sequence, resolved.
func (c *Options) pair(q, k span) (p Options, sees bool) {
	p = *c
	p.SeqQ, p.SeqK, p.Sinks = q.Len(), k.Len(), Sinks{}
	p.Q, p.K, p.V, p.Out = Strides{}, Strides{}, Strides{}, Strides{}
	queries, keys := q.Rows, k.Rows // of one document, and the positions of the first ones
	i, j := q.Lo, k.Lo
	shift := 0
	switch {
	case c.Align == Shifted:
		shift = c.Shift
	case c.Align == BottomRight && !c.packed():
		shift = c.SeqK - c.SeqQ
	}
	if c.packed() {
		// One document has rows in both spans, unless they are the same.
		d := document(c.QStarts, max(q.Lo, k.Lo))
		lo, hi := c.QStarts[d], c.QStarts[d+1]
		if q.Rows != k.Rows {
			queries, keys = queries.within(lo, hi), keys.within(lo, hi)
			if queries.Len() <= 0 || keys.Len() <= 0 {
				return p, false
			}
		}
		i, j = queries.Lo-lo, keys.Lo-lo
	}
	p.Align, p.Shift = Shifted, min(max(shift+i-j, -unlimited), unlimited)
	if c.Dropout.P > 0 {
		p.Dropout.Query += i
		p.Dropout.Key += j
	}
	right := c.Window.after()
	if c.Causal {
		right = 0
	}
	return p, queries.Len() > 0 && keys.Len() > 0 && -(queries.Len()-1)-p.Shift <= right && keys.Len()-1-p.Shift >= -c.Window.before()
}

// within returns the rows of r from lo to hi-1.
func (r Rows) within(lo, hi int) Rows { return Rows{max(r.Lo, lo), min(r.Hi, hi)} }
