package attention

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// UlyssesForward is [Forward] over a sequence whose rows are divided among ranks. It is
// DeepSpeed-Ulysses (Jacobs et al. 2023, arXiv:2309.14509). All ranks call it at the same time.
// Rank r of Size has rows r·n/Size to (r+1)·n/Size-1 of a sequence of n rows, of q, k and v, and
// gets these rows of out and lse. The ranks exchange rows for heads: a rank computes all rows of
// Heads/Size heads.
//
// c is the Options of the whole sequence, the same on all ranks, with all heads. Only the strides
// and GradLSE are for the tensors of the rank: q is [Batch, Heads, SeqQ/Size, Dim], k is
// [Batch, KVHeads, SeqK/Size, Dim], v is [Batch, KVHeads, SeqK/Size, DimV], and lse is
// [Batch, Heads, SeqQ/Size], or empty on all ranks, as GradLSE is. [SequenceMajor] of Options with a SeqQ of
// SeqQ/Size and a SeqK of SeqK/Size gives the strides of another layout. First each
// rank sends the 64 bytes of [RingForward] to each other rank. Which ranks have lse and GradLSE is compared too. If any two
// ranks differ, all ranks get the same error, which names two of them, and can go on with other calls.
//
// Size divides Heads, SeqQ and SeqK, and it divides KVHeads or is a multiple of KVHeads. With
// fewer key heads than ranks, Size/KVHeads ranks get each key head. Packed sequences can have rows
// of no sequence at the end, to make SeqQ a multiple of
// Size, and so can their keys: set SeqK then, whose default is the last of KStarts.
//
// Each head is computed whole, so out and lse have the bits of Forward, for any number of ranks.
// Dropout draws the random numbers of one process. A rank does not compute while it exchanges.
//
// ws is a workspace of at least the first length of [Options.UlyssesWorkspaceLen]; its contents
// mean nothing before or after. UlyssesForward allocates nothing else, but 16·Batch·Size bytes
// with Dropout and with Slopes of [Batch, Heads], and a function with a Score. The matrix units
// of GPUs need a ws that starts at a multiple of 16 bytes.
//
// A Bias has Dims of 1 for the batch and the heads, and so has a Mask. A Score is called with the
// batch, head and row numbers of the whole sequence.
//
// Errors, with nothing written or sent: the errors of Forward; [snug.ErrConfig] for nil ranks, a
// rank or a size out of range, Heads or KVHeads that cannot be divided, and a Bias or a Mask of
// other dimensions; [snug.ErrShape] for a SeqQ or SeqK that Size does not divide and a ws that is
// too short. Errors with nothing written but ws: ErrConfig for ranks that differ. The errors of
// AllToAll and of devices leave results partial. After another error of one
// rank the others wait in AllToAll, see [RingForward].
func UlyssesForward[V snug.Vector, L snug.Vector32](ranks AllToAller, out V, lse L, q, k, v V, c Options, ws L) error {
	return ulyssesForward(ranks, c, forwardJob{
		out: snug.ViewOf(out), lse: snug.ViewOf(lse), q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v), c: c,
	}, snug.ViewOf(ws))
}

// UlyssesWorkspaceLen returns the lengths of the float32 workspaces of [UlyssesForward] and
// [UlyssesBackward] on size ranks, for tensors of type dt. All ranks have the same. With n =
// SeqQ/size, m = SeqK/size and K the larger of KVHeads and size, forward holds
//
//	q                            Batch·Heads·n·Dim          of type dt
//	keys and values              Batch·K·m·(Dim+DimV)       of type dt
//	out                          Batch·Heads·n·DimV         of type dt
//	lse, twice                   2·Batch·Heads·n            of float32
//	the largest of the first three for one batch element    of type dt
//
// Backward holds
//
//	q and dq                     2·Batch·Heads·n·Dim        of type dt
//	keys, values, gradients      2·Batch·K·m·(Dim+DimV)     of type dt
//	out and dout                 2·Batch·Heads·n·DimV       of type dt
//	lse, twice, ws of Backward   3·Batch·Heads·n            of float32
//	GradLSE, unless empty        Batch·Heads·n              of float32
//	the largest of q, keys and values, out and dout for one batch element, of type dt
//	sums of dk and dv            Batch·KVHeads·m·(Dim+DimV) of float32
//
// The sums are for 16 bits and fewer key heads than ranks. One element of float32 holds two of 16
// bits, and every item is rounded up to 16 bytes. For packed sequences Batch counts as 1. Both are
// at least 32·size, for the exchange of Options. One rank needs no workspace forward, and that of
// Backward backward. Both lengths are 0 for Options, a
// size or a type that UlyssesForward does not take.
func (c Options) UlyssesWorkspaceLen(size int, dt snug.DType) (forward, backward int) {
	if size < 1 || size > maxRanks || !dt.IsFloat() {
		return 0, 0
	}
	w, err := c.ulyssesWhole(size)
	if err != nil {
		return 0, 0
	}
	f, b := w.ulyssesRegions(size, dt, false, false), w.ulyssesRegions(size, dt, true, c.GradLSE.Len() > 0)
	if f.overflow || b.overflow {
		return 0, 0
	}
	return f.words, b.words
}

// ulyssesWhole resolves c for the whole sequence, or returns an error for what so many ranks cannot divide.
func (c *Options) ulyssesWhole(size int) (Options, error) {
	w, err := c.resolveWhole()
	if err != nil {
		return w, err
	}
	switch {
	case w.Heads%size != 0:
		return w, fmt.Errorf("attention: %d Heads over %d ranks, want a multiple: %w", w.Heads, size, snug.ErrConfig)
	case w.KVHeads%size != 0 && size%w.KVHeads != 0:
		return w, fmt.Errorf("attention: %d KVHeads over %d ranks, want a multiple or a divisor: %w", w.KVHeads, size, snug.ErrConfig)
	case w.SeqQ%size != 0:
		return w, fmt.Errorf("attention: SeqQ is %d over %d ranks, want a multiple: %w", w.SeqQ, size, snug.ErrShape)
	case w.SeqK%size != 0:
		return w, fmt.Errorf("attention: SeqK is %d over %d ranks, want a multiple: %w", w.SeqK, size, snug.ErrShape)
	case (w.Bias.X.Len() > 0 || w.Bias.Grad.Len() > 0) && (w.Bias.Dims[0] != 1 || w.Bias.Dims[1] != 1):
		return w, fmt.Errorf("attention: Bias.Dims are %v over ranks, want 1 batch element and 1 head: %w", w.Bias.Dims, snug.ErrConfig)
	case w.Mask != nil && (w.Mask.batch != 1 || w.Mask.heads != 1):
		return w, fmt.Errorf("attention: Mask is [%d,%d,%d,%d] over ranks, want 1 batch element and 1 head: %w",
			w.Mask.batch, w.Mask.heads, w.Mask.seqQ, w.Mask.seqK, snug.ErrConfig)
	}
	return w, nil
}

// ulyssesRegions are the parts of a workspace. The tensors of all rows are [batch, rows, record]. A record is a row of
// this rank's heads.
type ulyssesRegions struct {
	regions
	q, kv, dq, dkv region
	out            region // backward: and dout, in one record
	lse, dlse      region
	turned         region // numbers of queries in the order of an exchange
	delta          region
	staged         region // an exchange of one batch element
	sums           region // of gradients of key heads that several ranks have
}

func (c *Options) ulyssesRegions(size int, dt snug.DType, backward, dlse bool) (r ulyssesRegions) {
	if size == 1 {
		if backward {
			r.words = c.queries()
		}
		return r
	}
	batch, keyHeads := c.batches(), max(1, c.KVHeads/size)
	heads, keyRecord := c.Heads/size, keyHeads*(c.Dim+c.DimV)
	r.q, r.kv = r.take(dt, batch, c.SeqQ, heads, c.Dim), r.take(dt, batch, c.SeqK, keyRecord)
	r.lse, r.turned = r.take(snug.F32, batch, heads, c.SeqQ), r.take(snug.F32, batch, heads, c.SeqQ)
	outs := c.DimV
	if backward {
		outs = 2 * c.DimV
		r.dq, r.dkv = r.take(dt, batch, c.SeqQ, heads, c.Dim), r.take(dt, batch, c.SeqK, keyRecord)
		r.delta = r.take(snug.F32, batch, heads, c.SeqQ)
		if dlse {
			r.dlse = r.take(snug.F32, batch, heads, c.SeqQ)
		}
		if dt != snug.F32 && c.KVHeads < size {
			r.sums = r.take(snug.F32, batch, c.KVHeads, c.SeqK/size, c.Dim+c.DimV)
		}
	}
	r.out = r.take(dt, batch, c.SeqQ, heads, outs)
	most := max(r.q.n, r.kv.n, r.out.n)
	if batch > 0 {
		most /= batch
	}
	r.staged = r.take(dt, most)
	r.words = max(r.words, headersLen(size))
	return r
}

// ulysses is the part of a call that both directions have.
type ulysses struct {
	group
	ranks           AllToAller
	ws              snug.View
	at              ulyssesRegions
	heads, keyHeads int // of this rank
	rowsQ, rowsK    int // of each rank
	usedQ, usedK    int // of these, rows that a packed sequence has
	replicas        int // ranks that have a key head
	inner           Options
	numbers         Strides // of lse
	staged, turned  snug.View
}

// newUlysses checks the Options of a rank.
func newUlysses(ranks AllToAller, c *Options) (u ulysses, err error) {
	if u.group, err = newGroup(ranks); err != nil {
		return u, err
	}
	if u.whole, err = c.ulyssesWhole(u.size); err != nil {
		return u, err
	}
	w := &u.whole
	u.ranks, u.heads, u.keyHeads = ranks, w.Heads/u.size, max(1, w.KVHeads/u.size)
	u.replicas = max(1, u.size/max(1, w.KVHeads))
	u.rowsQ, u.rowsK = w.SeqQ/u.size, w.SeqK/u.size
	u.usedQ, u.usedK = u.rowsQ, u.rowsK
	if w.packed() {
		u.usedQ = min(max(w.QStarts[w.Batch]-u.rank*u.rowsQ, 0), u.rowsQ)
		u.usedK = min(max(w.KStarts[w.Batch]-u.rank*u.rowsK, 0), u.rowsK)
	}
	return u, u.setLocal(c, u.rowsQ, u.rowsK)
}

// begin sets the workspace and the Options of this rank's heads. outs is DimV for records of out, and twice that for
// records of out and dout.
func (u *ulysses) begin(ws snug.View, at ulyssesRegions, outs int) {
	u.ws, u.at = ws, at
	u.staged, u.turned = at.staged.of(ws), at.turned.of(ws)
	w := &u.whole
	c := *w
	record := u.keyHeads * (c.Dim + c.DimV)
	c.Heads, c.KVHeads = u.heads, u.keyHeads
	c.Q = Strides{Batch: w.SeqQ * u.heads * c.Dim, Head: c.Dim, Row: u.heads * c.Dim}
	c.K = Strides{Batch: w.SeqK * record, Head: c.Dim, Row: record}
	c.V = Strides{Batch: w.SeqK * record, Head: c.DimV, Row: record}
	c.Out = Strides{Batch: w.SeqQ * u.heads * outs, Head: c.DimV, Row: u.heads * outs}
	u.numbers = Strides{Batch: u.heads * w.SeqQ, Head: w.SeqQ}
	of := func(v snug.View) snug.View {
		if v.Len() != w.Heads {
			return v
		}
		return slice(v, u.firstHead(u.rank), u.firstHead(u.rank+1))
	}
	c.Slopes, c.Sinks.X, c.Sinks.Grad = of(w.Slopes), of(w.Sinks.X), of(w.Sinks.Grad)
	if score := w.Score; score != nil {
		first := u.firstHead(u.rank)
		c.Score = func(s float32, b, h, i, j int) (float32, float32) { return score(s, b, first+h, i, j) }
	}
	if w.Dropout.P > 0 || w.Batch > 1 && w.Slopes.Len() == w.Batch*w.Heads {
		u.number(&c)
	}
	c.allHeads = w.Batch * w.Heads
	u.inner = c
}

// number gives heads the numbers that they have in the whole: b·Heads+h selects the random numbers of Dropout and the
// slope. It turns the batch into packed sequences, Size for each element. Of these only sequence number Rank has rows:
//
//	(b·Size + Rank)·(Heads/Size) + h = b·Heads + Rank·(Heads/Size) + h
func (u *ulysses) number(c *Options) {
	w := &u.whole
	n := w.Batch*u.size + 1
	queries, keys := make([]int, n), make([]int, n)
	for b := range w.Batch {
		q, k := [2]int{b * w.SeqQ, (b + 1) * w.SeqQ}, [2]int{b * w.SeqK, (b + 1) * w.SeqK}
		switch {
		case w.packed():
			copy(q[:], w.QStarts[b:])
			copy(k[:], w.KStarts[b:])
		case w.KLens != nil:
			k[1] = k[0] + w.KLens[b]
		}
		own := b*u.size + u.rank
		queries[own], queries[own+1], keys[own], keys[own+1] = q[0], q[1], k[0], k[1]
	}
	for i := 1; i < n; i++ {
		queries[i], keys[i] = max(queries[i], queries[i-1]), max(keys[i], keys[i-1])
	}
	if !w.packed() {
		c.SeqQ, c.SeqK = w.Batch*w.SeqQ, w.Batch*w.SeqK
		u.numbers = Strides{Batch: w.SeqQ, Head: c.SeqQ}
	}
	c.Batch, c.QStarts, c.KStarts, c.KLens = w.Batch*u.size, queries, keys, nil
	if score := c.Score; score != nil {
		size := u.size
		c.Score = func(s float32, b, h, i, j int) (float32, float32) { return score(s, b/size, h, i, j) }
	}
}

// firstHead returns the first query head of a rank, and firstKeyHead its first key head.
func (u *ulysses) firstHead(rank int) int    { return rank * u.heads }
func (u *ulysses) firstKeyHead(rank int) int { return rank * u.whole.KVHeads / u.size }

func ulyssesForward(ranks AllToAller, c Options, j forwardJob, ws snug.View) error {
	u, err := newUlysses(ranks, &c)
	if err != nil {
		return err
	}
	tensors := []tensor{{name: "q", view: j.q}, {name: "k", view: j.k}, {name: "v", view: j.v}, {name: "out", view: j.out}}
	at := u.whole.ulyssesRegions(u.size, j.q.DType(), false, false)
	if err := u.check(tensors, j.lse, ws, true, at.regions); err != nil {
		return err
	}
	if u.size == 1 {
		return forward(j)
	}
	if err := u.agree(ulyssesForwards, ws, j.lse.Len() > 0, false); err != nil {
		return err
	}
	if u.whole.Batch == 0 || u.heads == 0 || u.rowsQ == 0 {
		return nil
	}
	u.begin(ws, at, u.whole.DimV)
	q, k, v, err := u.load(j.q, j.k, j.v)
	if err != nil {
		return err
	}
	out, lse := at.out.of(ws), snug.View{}
	if j.lse.Len() > 0 {
		lse = at.lse.of(ws)
	}
	u.inner.GradLSE = snug.View{}
	if err := forward(forwardJob{out: out, lse: lse, q: q, k: k, v: v, c: u.inner}); err != nil {
		return err
	}
	dimV := u.whole.DimV
	if err := u.toRows(out, u.heads*dimV, u.rowsQ, u.usedQ, column{v: j.out, st: u.local.Out, dim: dimV}); err != nil || lse.Len() == 0 {
		return err
	}
	return u.numbersToRows(j.lse, lse)
}

// load returns q, k and v of all rows and this rank's heads.
func (u *ulysses) load(q, k, v snug.View) (allQ, allK, allV snug.View, err error) {
	c := &u.whole
	allQ, allK = u.at.q.of(u.ws), u.at.kv.of(u.ws)
	first := u.keyHeads * c.Dim
	if err = u.toHeads(allQ, u.heads*c.Dim, u.rowsQ, column{v: q, st: u.local.Q, dim: c.Dim}); err == nil && u.rowsK > 0 {
		err = u.toHeads(allK, u.keyHeads*(c.Dim+c.DimV), u.rowsK,
			column{v: k, st: u.local.K, keys: true, dim: c.Dim}, column{v: v, st: u.local.V, keys: true, dim: c.DimV, first: first})
	}
	return allQ, allK, after(allK, first), err
}
