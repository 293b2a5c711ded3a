package attention

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// UlyssesForward is [Forward] over a sequence whose rows are cut among ranks: DeepSpeed-Ulysses (Jacobs et al. 2023,
// arXiv:2309.14509). All ranks call it at the same time. Rank r of Size has rows r·n/Size to (r+1)·n/Size-1 of a
// sequence of n, of q, k and v, and gets those rows of out and lse. The ranks exchange rows for heads: each computes all rows of Heads/Size heads.
//
// c is that of the whole sequence and the same on all ranks, with SeqQ, SeqK, all heads and everything else for the whole. Only the strides
// and GradLSE are for the rank's tensors: q is [Batch, Heads, SeqQ/Size, Dim] and lse is [Batch, Heads, SeqQ/Size] or
// empty, on all ranks.
//
// Size divides Heads, SeqQ and SeqK, and it divides KVHeads or is a multiple of it. With fewer key heads than ranks
// each key head is sent to Size/KVHeads ranks.
//
// Each head is computed whole: out and lse have the bits of Forward, on any number of ranks. Nothing is computed during an exchange.
//
// ws is a workspace of at least as many elements as [Options.UlyssesWorkspaceLen] says, which hold nothing before or
// after. Besides, a call allocates less than 4 KiB, and with Dropout 16·Batch·Size bytes. The random numbers of
// Dropout are those of one process.
//
// A Bias and a Mask are of one batch element and one head, which all share. A Score is called with the numbers of the whole.
// Nothing else is excluded.
//
// Errors: those of Forward; ErrShape for a SeqQ or SeqK that Size does not divide and a ws that is too short, and
// [snug.ErrConfig] for nil ranks, heads that cannot be divided, and a Bias or Mask of more, with nothing written or sent;
// and the errors of AllToAll. After an error of one rank the others wait in AllToAll, see [RingForward].
func UlyssesForward[V snug.Vector, L snug.Vector32](ranks AllToAller, out V, lse L, q, k, v V, c Options, ws L) error {
	return ulyssesForward(ranks, c, forwardJob{
		out: snug.ViewOf(out), lse: snug.ViewOf(lse), q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v), c: c,
	}, snug.ViewOf(ws))
}

// UlyssesWorkspaceLen returns the lengths of the float32 workspaces of [UlyssesForward] and [UlyssesBackward] for so
// many ranks and tensors of a type. They are the same on all ranks. With n = SeqQ/size, m = SeqK/size and K the larger
// of KVHeads and size, forward holds
//
//	q and out                        Batch·Heads·n·(Dim+DimV), of the type
//	keys and values                  Batch·K·m·(Dim+DimV), of the type
//	lse twice                        2·Batch·Heads·n
//	the largest of these exchanges   of one batch element, of the type
//
// backward holds
//
//	q, dq, out and dout              2·Batch·Heads·n·(Dim+DimV), of the type
//	keys, values and their gradients 2·Batch·K·m·(Dim+DimV), of the type
//	lse, GradLSE and delta           3 or 4·Batch·Heads·n
//	the largest of these exchanges   of one batch element, of the type
//
// and, for 16-bit types and fewer key heads than ranks, sums of gradients in float32, Batch·KVHeads·m·(Dim+DimV). Two
// elements of 16 bits take one of float32. One rank needs no workspace forward and that of [Backward] backward. Both are 0
// for Options, a number of ranks or a type that UlyssesForward does not take.
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

// ulyssesRegions are the parts of a workspace. The tensors of all rows are [batch, rows, record]; a record is the heads of this rank.
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

// begin sets the workspace and the Options of this rank's heads. A record of all rows has outs values of out, or of
// out and dout.
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
	u.inner = c
}

// number makes the number of a head, b·Heads+h, that of the whole sequence, which names the random numbers of Dropout
// and the slope. The batch becomes packed sequences, Size for each element, of which only number Rank has queries:
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

// column is a tensor of the caller that is exchanged, and where its heads are in the records of all rows.
type column struct {
	v          snug.View
	st         Strides
	keys       bool // of key heads
	dim, first int  // elements of a head, first element in the record
}

// toHeads fills records with all rows of this rank's heads of the columns.
func (u *ulysses) toHeads(records snug.View, record, rows int, columns ...column) error {
	for b := range u.local.batches() {
		n := u.size * rows * record
		sent := slice(u.staged, 0, n)
		for rank := range u.size {
			for _, c := range columns {
				j := u.rowsOf(c, b, rank, rows, record)
				j.dst, j.src, j.to, j.from = after(sent, rank*rows*record+c.first), j.dst, j.from, j.to
				if err := u.copyRows(j); err != nil {
					return err
				}
			}
		}
		if err := u.exchange(slice(records, b*n, (b+1)*n), sent); err != nil {
			return err
		}
	}
	return nil
}

// toRows fills the columns with this rank's rows, used of rows, from records of all rows. Where several ranks have a
// key head, it adds.
func (u *ulysses) toRows(records snug.View, record, rows, used int, columns ...column) error {
	for b := range u.local.batches() {
		n := u.size * rows * record
		got := slice(u.staged, 0, n)
		if err := u.exchange(got, slice(records, b*n, (b+1)*n)); err != nil {
			return err
		}
		for rank := range u.size {
			for _, c := range columns {
				j := u.rowsOf(c, b, rank, used, record)
				j.src, j.add = after(got, rank*rows*record+c.first), c.keys && rank%u.replicas != 0
				if err := u.copyRows(j); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// rowsOf returns the copy from a rank's record to a column of the caller, of one batch element.
func (u *ulysses) rowsOf(c column, b, rank, rows, record int) rowsJob {
	heads, head := u.heads, u.firstHead(rank)
	if c.keys {
		heads, head = u.keyHeads, u.firstKeyHead(rank)
	}
	return rowsJob{
		dst: after(c.v, b*c.st.Batch+head*c.st.Head), to: c.st, from: Strides{Head: c.dim, Row: record},
		batch: 1, heads: heads, n: rows, dim: c.dim,
	}
}

// numbersToHeads fills all, a number for every query of this rank's heads, from those of this rank's queries.
func (u *ulysses) numbersToHeads(all, own snug.View) error {
	for rank := range u.size {
		if err := u.copyRows(u.numbersOf(all, own, rank, u.rowsQ)); err != nil {
			return err
		}
	}
	if err := u.exchange(u.turned, all); err != nil {
		return err
	}
	return u.copyRows(u.turn(all, u.turned))
}

// numbersToRows does the opposite.
func (u *ulysses) numbersToRows(own, all snug.View) error {
	j := u.turn(all, u.turned)
	j.dst, j.src, j.to, j.from = j.src, j.dst, j.from, j.to
	if err := u.copyRows(j); err != nil {
		return err
	}
	if err := u.exchange(all, u.turned); err != nil {
		return err
	}
	for rank := range u.size {
		j := u.numbersOf(all, own, rank, u.usedQ)
		j.dst, j.src, j.to, j.from = j.src, j.dst, j.from, j.to
		if err := u.copyRows(j); err != nil {
			return err
		}
	}
	return nil
}

// numbersOf returns the copy of a rank's heads of this rank's numbers to the order of an exchange: [Size, batch, heads,
// rows].
func (u *ulysses) numbersOf(all, own snug.View, rank, used int) rowsJob {
	n, batch := u.rowsQ, u.local.batches()
	return rowsJob{
		dst: after(all, rank*batch*u.heads*n), src: after(own, u.firstHead(rank)*n),
		to: headMajor(u.heads, n, 1), from: headMajor(u.whole.Heads, n, 1),
		batch: batch, heads: u.heads, n: min(1, used), dim: used,
	}
}

// turn returns the copy from the order of an exchange to that of lse.
func (u *ulysses) turn(all, turned snug.View) rowsJob {
	n := u.rowsQ
	return rowsJob{
		dst: all, src: turned, to: Strides{Batch: u.numbers.Batch, Head: u.numbers.Head, Row: n},
		from:  Strides{Batch: u.heads * n, Head: n, Row: u.local.batches() * u.heads * n},
		batch: u.local.batches(), heads: u.heads, n: u.size, dim: n,
	}
}

func (u *ulysses) exchange(dst, src snug.View) error {
	if err := u.ranks.AllToAll(dst, src); err != nil {
		return fmt.Errorf("attention: rows for heads: %w", err)
	}
	return nil
}

func ulyssesForward(ranks AllToAller, c Options, j forwardJob, ws snug.View) error {
	u, err := newUlysses(ranks, &c)
	if err != nil {
		return err
	}
	tensors := []tensor{{name: "q", view: j.q}, {name: "k", view: j.k}, {name: "v", view: j.v}, {name: "out", view: j.out}}
	at := u.whole.ulyssesRegions(u.size, j.q.DType(), false, false)
	if err := u.check(tensors, j.lse, ws, true, at.words, !at.overflow); err != nil {
		return err
	}
	switch {
	case u.size == 1:
		return forward(j)
	case u.whole.Batch == 0 || u.heads == 0 || u.rowsQ == 0:
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
