package conv

import "github.com/snug-ml/snug/internal/patch"

// pieceList lists what taps t0 to t1-1 read for positions, as pieces, in parts that there is room for. Element j of a
// run goes to panel j/panel, at j%panel of the row of its tap. Where the source is as large as the result, pieces go on over the ends
// of lines: what a tap reads lies side by side, except for the padding.
type pieceList struct {
	from     runs
	t0, t1   int
	panel    int // elements of a row
	panelLen int // from panel to panel
	tapLen   int // from tap to tap
	next     int // from channel to channel
	images   int // elements from an image of the source to the next
	n        int // pieces that are listed
	lists    int
}

// listKey says which list of a tile's positions the pieces are, if they are all of it.
type listKey struct{ t0, t1, panelLen, n int }

func (l *pieceList) key() listKey {
	if l.lists != 1 {
		return listKey{}
	}
	return listKey{l.t0, l.t1, l.panelLen, l.n}
}

// same says whether the pieces with a key are all of l.
func (l *pieceList) same(k listKey) bool {
	return k.n > 0 && k == listKey{l.t0, l.t1, l.panelLen, k.n}
}

// list lists the next part, if there is one.
func (l *pieceList) list(pieces []patch.Piece) bool {
	n := 0
	r, step, image := &l.from, l.from.phase.axes[2].step, -1
	even := r.phase.even()
	for len(pieces)-n >= l.t1-l.t0 && r.next() {
		r.cutAt(l.panel)
		dst := r.col/l.panel*l.panelLen + r.col%l.panel
		joins := even && r.image == image && r.col%l.panel > 0
		if image = r.image; joins {
			n -= l.t1 - l.t0
		}
		for tap := l.t0; tap < l.t1; tap++ {
			s := r.span(tap)
			if !joins {
				pieces[n] = patch.Piece{Src: int64(image*l.images + s.at - s.lo*step), Dst: int64(dst + (tap-l.t0)*l.tapLen)}
			}
			pieces[n].Join(r.len, s.lo, s.hi)
			n++
		}
	}
	if n > 0 {
		l.n = n
		l.lists++
	}
	return n > 0
}
