package attention

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
)

// sequence is one element of the batch: its rows in the tensors, and the keys that its
// queries see. The range of keys moves on with the number of the query, or stays.
type sequence struct {
	b      int // number
	nq, nk int // queries and keys
	rows   int // of keys: nk, or more with KLens
	batch  int // number in tensors: 0 for packed tensors
	q0, k0 int // first rows in tensors
	shift  int // position of a query minus its number
	// left and right are how many keys before and behind its position a query sees.
	left, right int
}

// unlimited is more than any number of keys in memory.
const unlimited = math.MaxInt / 4

// sequence returns element b of the batch.
func (c *Options) sequence(b int) sequence {
	s := sequence{b: b, nq: c.SeqQ, nk: c.SeqK, rows: c.SeqK, batch: b, left: c.Window.before(), right: c.Window.after()}
	if c.Causal {
		s.right = 0
	}
	switch {
	case c.packed():
		s.batch = 0
		s.q0, s.nq = c.QStarts[b], c.QStarts[b+1]-c.QStarts[b]
		s.k0, s.nk = c.KStarts[b], c.KStarts[b+1]-c.KStarts[b]
		s.rows = s.nk
	case c.KLens != nil:
		s.nk = c.KLens[b]
	}
	queries := s.nq
	if c.oneQuery {
		queries = 1 // all have its position
	}
	s.shift = c.shift(queries, s.nk)
	return s
}

// shift returns the position of a query minus its number, for nq queries and nk keys.
func (c *Options) shift(nq, nk int) int {
	switch c.Align {
	case BottomRight:
		return nk - nq
	case Shifted:
		return c.Shift
	}
	return 0
}

// keys returns the range of keys, lo to hi-1, that query i sees. Both grow with i.
func (s *sequence) keys(i int) (lo, hi int) {
	at := i + s.shift
	return min(max(at-s.left, 0), s.nk), min(max(at+s.right+1, 0), s.nk)
}

// queries returns the range of queries, lo to hi-1, that see any of the keys k0 to k1-1.
// It is empty if hi <= lo.
func (s *sequence) queries(k0, k1 int) (lo, hi int) {
	if k0 >= s.nk {
		return 0, 0
	}
	return max(k0-s.right-s.shift, 0), min(max(k1+s.left-s.shift, 0), s.nq)
}

// packed reports whether the sequences lie one after the other in tensors.
func (c *Options) packed() bool { return c.QStarts != nil }

// longest returns the most queries and keys of a sequence.
func (c *Options) longest() (queries, keys int) {
	if !c.packed() {
		return c.SeqQ, c.SeqK
	}
	for b := range c.Batch {
		queries = max(queries, c.QStarts[b+1]-c.QStarts[b])
		keys = max(keys, c.KStarts[b+1]-c.KStarts[b])
	}
	return queries, keys
}

// queries returns the rows of q over all heads.
func (c *Options) queries() int { return c.batches() * c.Heads * c.SeqQ }

// batches returns the elements of the batch in tensors.
func (c *Options) batches() int {
	if c.packed() {
		return 1
	}
	return c.Batch
}

// row returns the number of a sequence's first query of a head, as in lse.
func (c *Options) row(s *sequence, h int) int { return (s.batch*c.Heads+h)*c.SeqQ + s.q0 }

// kvHead returns the key head that query head h reads.
func (c *Options) kvHead(h int) int { return h / (c.Heads / c.KVHeads) }

// queryHead and keyHead return a head's rows of a sequence: queryHead in tensors like q and
// out, keyHead in tensors like k and v.
func (s *sequence) queryHead(v snug.View, st Strides, h, dim int) head {
	return head{v, s.batch*st.Batch + h*st.Head + s.q0*st.Row, st.Row, dim}
}

func (s *sequence) keyHead(v snug.View, st Strides, h, dim int) head {
	return head{v, s.batch*st.Batch + h*st.Head + s.k0*st.Row, st.Row, dim}
}

// queryItems returns the items of a loop over the tiles of queries of all heads. Every
// sequence has as many items as the longest sequence has tiles.
func (c *Options) queryItems() int {
	longest, _ := c.longest()
	return c.Batch * c.Heads * cpu.Chunks(longest, tileQ)
}

// queryTile is queryTiles of items of one tile.
func (c *Options) queryTile(item int) (s sequence, h, q0, q1 int, ok bool) {
	return c.queryTiles(item, 1)
}

// queryTiles returns the sequence, the head and the queries, q0 to q1-1, of one item of up to
// group tiles, and false if the sequence has no such tiles. The last tiles of every head come first: under a
// causal mask they see the most keys, and starting with long items balances the workers.
func (c *Options) queryTiles(item, group int) (s sequence, h, q0, q1 int, ok bool) {
	heads, size := c.Batch*c.Heads, group*tileQ
	s, h = c.sequence(item%heads/c.Heads), item%heads%c.Heads
	number := cpu.Chunks(s.nq, size) - 1 - item/heads
	if number < 0 {
		return s, h, 0, 0, false
	}
	q0, q1 = cpu.Chunk(s.nq, size, number)
	return s, h, q0, q1, true
}
