package attention

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// RingForward is [Forward] over a sequence whose rows are divided among ranks. It is ring
// attention (Liu, Zaharia, Abbeel 2023, arXiv:2310.01889), with pieces that balance a causal
// mask. All ranks call it at the same time, each with its own rows of q, k and v, and get their
// rows of out and lse. [RingRows] returns the rows of a rank.
//
// c is the Options of the whole sequence, the same on all ranks: SeqQ, SeqK, QStarts, Window and
// Dropout count the rows of the whole. Only the strides and GradLSE are for the tensors of the
// rank. With n rows of queries and m rows of keys on the rank, q is [Batch, Heads, n, Dim], k is
// [Batch, KVHeads, m, Dim], v is [Batch, KVHeads, m, DimV], and lse is [Batch, Heads, n], or empty. [SequenceMajor] of Options
// with a SeqQ of n and a SeqK of m gives the strides of another layout. SeqK may differ from SeqQ, and RingRows divides keys as
// well.
//
// First each rank sends 64 bytes to the next one, with checksums of what has to be the same on all ranks: the function, the
// element type, and the Options but strides, GradLSE and what vectors and a Mask hold. Two neighbours that differ both get an
// error, which names them and says whether they differ in dimensions, the mask, the scores, Dropout or something else. The
// other ranks wait, as after any error of one rank.
//
// In each of Size steps a rank computes the attention of its queries to the keys of one rank.
// Meanwhile it sends these keys and values to the next rank and receives those of the next step.
// The parts are joined as by [Merge], in float32. Pieces of keys that Causal, Window or the
// ends of packed sequences hide from a piece of queries are sent, but not computed. With Causal alone, and a
// SeqQ that 2·Size divides, all ranks compute the same number of scores in each step. A Window or
// packed sequences can hide more on one rank than on another; all keys pass all ranks.
//
// One rank has the bits of Forward. With more ranks the results are the same in every run and for
// every GOMAXPROCS. The rounding error is that of Forward and of Merge; for 16-bit types each step also
// rounds its part of out once.
//
// ws is a workspace of at least the first length of [Options.RingWorkspaceLen]; its contents
// mean nothing before or after. RingForward also allocates about 6 KiB, 200 bytes for each rank,
// and with packed sequences 16·(Batch+1) bytes for each pair of pieces that it computes. The
// matrix units of GPUs need a ws that starts at a multiple of 16 bytes.
//
// KLens, KStarts that differ from QStarts, Mask, Bias and Score are not for rings.
//
// Errors, with nothing written or sent: the errors of Forward; [snug.ErrConfig] for nil ranks,
// a rank or a size out of range, and Options that are not for rings; [snug.ErrShape] for a ws
// that is too short. Errors with nothing written but ws: ErrConfig for neighbours that differ. The
// errors of SendReceive and of devices leave results partial. After an
// error of one rank the others wait in SendReceive, so end them: cancel the context of
// accum.Local, or call Abort of dist/mpi or of dist/nccl. A goroutine calls SendReceive. It has ended when
// RingForward returns, and its panic is the caller's.
func RingForward[V snug.Vector, L snug.Vector32](ranks SendReceiver, out V, lse L, q, k, v V, c Options, ws L) error {
	return ringForward(ranks, c, forwardJob{
		out: snug.ViewOf(out), lse: snug.ViewOf(lse), q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v), c: c,
	}, snug.ViewOf(ws))
}

// RingWorkspaceLen returns the lengths of the float32 workspaces of [RingForward] and
// [RingBackward] on size ranks, for tensors of type dt. All ranks have the same. A rank has up to
// n rows of queries and m rows of keys, two pieces of ⌈SeqQ/(2·size)⌉ and of ⌈SeqK/(2·size)⌉ rows. One
// element of float32 holds two of 16 bits, and every item is rounded up to 16 bytes. For packed
// sequences Batch counts as 1. Forward holds
//
//	keys and values, twice       2·Batch·KVHeads·m·(Dim+DimV)   of type dt
//	out                          Batch·Heads·n·DimV             of float32
//	out of one piece             Batch·Heads·n·DimV/2           of type dt
//	the same, for 16 bits        Batch·Heads·n·DimV/2           of float32
//	lse, and of one piece        Batch·Heads·n·3/2              of float32
//
// and at least 32 elements, as does backward, for the exchange of Options. Backward holds
//
//	keys and values, twice       2·Batch·KVHeads·m·(Dim+DimV)   of type dt
//	their gradients, 3 times     3·Batch·KVHeads·m·(Dim+DimV)   of float32
//	the same of one piece        Batch·KVHeads·m·(Dim+DimV)/2   of type dt
//	q                            Batch·Heads·n·Dim              of type dt
//	dq                           Batch·Heads·n·Dim              of float32
//	dq of one piece              Batch·Heads·n·Dim/2            of type dt
//	lse, and ws of Backward      Batch·Heads·n·3/2              of float32
//	GradLSE, unless empty        Batch·Heads·n                  of float32
//	Sinks.Grad, unless empty     Heads                          of float32
//
// One rank needs no workspace forward, and that of Backward backward. Both lengths are 0 for
// Options, a size or a type that RingForward does not take.
func (c Options) RingWorkspaceLen(size int, dt snug.DType) (forward, backward int) {
	w, err := c.ringWhole()
	if err != nil || size < 1 || size > maxRanks || !dt.IsFloat() {
		return 0, 0
	}
	f, b := w.ringForwardRegions(size, dt), w.ringBackwardRegions(size, dt, c.GradLSE.Len() > 0)
	if f.overflow || b.overflow {
		return 0, 0
	}
	return f.words, b.words
}

// ringWhole resolves c for the whole sequence, or returns an error for what a ring cannot do.
func (c *Options) ringWhole() (Options, error) {
	w, err := c.resolveWhole()
	if err != nil {
		return w, err
	}
	for _, not := range [...]struct {
		name string
		is   bool
	}{
		{"KLens", w.KLens != nil}, {"Mask", w.Mask != nil}, {"Bias", c.Bias.Dims != [4]int{} || c.Bias.X.Len() > 0 || c.Bias.Grad.Len() > 0},
		{"Score", w.Score != nil}, {"packed keys other than packed queries", w.packed() && (!w.equalStarts() || w.SeqK != w.SeqQ)},
	} {
		if not.is {
			return w, fmt.Errorf("attention: %s over a ring of ranks: %w", not.name, snug.ErrConfig)
		}
	}
	return w, nil
}

// ringPiece returns the most rows of a piece of n.
func ringPiece(n, size int) int { return n/(2*size) + min(1, n%(2*size)) }

// ringForwardRegions are the parts of the workspace of RingForward.
type ringForwardRegions struct {
	regions
	keys       [2]region // and values, of the present step and of the next
	out, lse   region    // merged so far
	part, wide region    // out of one pair of spans, and in float32
	partLSE    region
}

func (c *Options) ringForwardRegions(size int, dt snug.DType) (r ringForwardRegions) {
	if size == 1 {
		return r
	}
	batch, piece := c.batches(), ringPiece(c.SeqQ, size)
	for i := range r.keys {
		r.keys[i] = r.take(dt, batch, c.KVHeads, 2*ringPiece(c.SeqK, size), c.Dim+c.DimV)
	}
	r.out, r.lse = r.take(snug.F32, batch, c.Heads, 2*piece, c.DimV), r.take(snug.F32, batch, c.Heads, 2*piece)
	r.part, r.partLSE = r.take(dt, batch, c.Heads, piece, c.DimV), r.take(snug.F32, batch, c.Heads, piece)
	r.wide = r.part
	if dt != snug.F32 {
		r.wide = r.take(snug.F32, batch, c.Heads, piece, c.DimV)
	}
	r.words = max(r.words, headersLen(1))
	return r
}

// ring is the part of a call over a ring that both directions have.
type ring struct {
	group
	ranks   SendReceiver
	ws      snug.View
	queries spans              // of this rank
	keys    [2]snug.View       // and values: those of the present step first
	begun   [len(spans{})]bool // whether a span of queries has a result
	pair    Options            // of the pair of spans that is computed
	flight  transfer
}

// newRing checks the Options of a rank. Its ring has no workspace yet.
func newRing(ranks SendReceiver, c *Options) (r ring, err error) {
	if r.group, err = newGroup(ranks); err != nil {
		return r, err
	}
	if r.whole, err = c.ringWhole(); err != nil {
		return r, err
	}
	r.ranks = ranks
	r.queries = spansOf(r.whole.SeqQ, r.whole.QStarts, r.rank, r.size)
	return r, r.setLocal(c, ringLen(r.whole.SeqQ, r.rank, r.size), ringLen(r.whole.SeqK, r.rank, r.size))
}

// owner returns the rank whose keys this rank has in a step.
func (r *ring) owner(step int) int { return (r.rank - step + r.size) % r.size }

// next and last are the neighbours in the ring.
func (r *ring) next() int { return (r.rank + 1) % r.size }
func (r *ring) last() int { return (r.rank + r.size - 1) % r.size }

// keySpans returns the spans of the keys of a rank.
func (r *ring) keySpans(rank int) spans {
	return spansOf(r.whole.SeqK, r.whole.QStarts, rank, r.size)
}

// keysLen returns the elements of the keys and values of a rank, or of their gradients.
func (r *ring) keysLen(rank int) int {
	s := r.keySpans(rank)
	return r.local.batches() * r.whole.KVHeads * s.len() * (r.whole.Dim + r.whole.DimV)
}

// ofKeys returns the keys and the values of a span, or their gradients, in a vector of all spans. They are
// contiguous tensors, first of the keys and then of the values.
func (r *ring) ofKeys(all snug.View, s span) (k, v snug.View) {
	n := r.local.batches() * r.whole.KVHeads
	at := n * s.in * (r.whole.Dim + r.whole.DimV)
	middle := at + n*s.Len()*r.whole.Dim
	return slice(all, at, middle), slice(all, middle, middle+n*s.Len()*r.whole.DimV)
}

// moveKeys copies the keys and values of this rank, or their gradients, between the caller's tensors and a vector of
// all spans.
func (r *ring) moveKeys(k, v, all snug.View, toCaller bool) error {
	for _, s := range r.keySpans(r.rank) {
		partK, partV := r.ofKeys(all, s)
		err := r.moveRows(k, r.local.K, partK, s, r.whole.KVHeads, r.whole.Dim, toCaller)
		if err == nil {
			err = r.moveRows(v, r.local.V, partV, s, r.whole.KVHeads, r.whole.DimV, toCaller)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// moveRows copies the rows of a span between a tensor of the caller and a contiguous one.
func (r *ring) moveRows(tensor snug.View, st Strides, own snug.View, s span, heads, dim int, toCaller bool) error {
	j := rowsJob{
		dst: own, src: after(tensor, s.at*st.Row), to: headMajor(heads, s.Len(), dim), from: st,
		batch: r.local.batches(), heads: heads, n: s.Len(), dim: dim,
	}
	if toCaller {
		j.dst, j.src, j.to, j.from = j.src, j.dst, j.from, j.to
	}
	return r.copyRows(j)
}

// moveNumbers copies the part of a span between vectors like lse, with a number for every query.
func (r *ring) moveNumbers(all, own snug.View, s span, toCaller bool) error {
	j := rowsJob{
		dst: own, src: after(all, s.at), to: Strides{Head: s.Len()}, from: Strides{Head: r.local.SeqQ},
		batch: 1, heads: r.local.batches() * r.whole.Heads, n: min(1, s.Len()), dim: s.Len(),
	}
	if toCaller {
		j.dst, j.src, j.to, j.from = j.src, j.dst, j.from, j.to
	}
	return r.copyRows(j)
}

// cast copies contiguous rows from one type to another, or adds them.
func (r *ring) cast(dst, src snug.View, dim int, add bool) error {
	st := Strides{Row: dim}
	return r.copyRows(rowsJob{dst: dst, src: src, to: st, from: st, batch: 1, heads: 1, n: dst.Len() / dim, dim: dim, add: add})
}

// ofQueries returns the tensor of a span in a vector of contiguous tensors of all spans, with rows of dim.
func (r *ring) ofQueries(all snug.View, s span, dim int) snug.View {
	n := r.local.batches() * r.whole.Heads * dim
	return slice(all, n*s.in, n*(s.in+s.Len()))
}

// top returns the first elements of a region, as many as a span has in heads with rows of dim.
func (r *ring) top(part region, s span, heads, dim int) snug.View {
	return slice(part.of(r.ws), 0, r.local.batches()*heads*s.Len()*dim)
}

// sendKeys sends the keys of a step on, and receives those of the next.
func (r *ring) sendKeys(step int) error {
	n, m := r.keysLen(r.owner(step)), r.keysLen(r.owner(step+1))
	return r.send("keys and values", slice(r.keys[1], 0, m), slice(r.keys[0], 0, n))
}

// send sends src to the next rank and receives dst from the last.
func (r *ring) send(what string, dst, src snug.View) error {
	if err := r.ranks.SendReceive(dst, r.last(), src, r.next()); err != nil {
		return fmt.Errorf("attention: %s around the ring: %w", what, err)
	}
	return nil
}

// pairs calls compute for every span of this rank's queries and every span of an owner's keys that they see. It also
// calls it for the first keys that a span of queries meets, so that every query gets a result.
func (r *ring) pairs(owner int, compute func(qi, ki int, q, k span) error) error {
	keys := r.keySpans(owner)
	for qi, q := range r.queries {
		for i := range keys {
			ki := i
			if owner == r.rank {
				ki = (qi + i) % len(keys) // with its own keys a span sees something, except by a window
			}
			k := keys[ki]
			if q.Len() == 0 || k.Len() == 0 {
				continue
			}
			var sees bool
			if r.pair, sees = r.whole.pair(q, k); !sees && r.begun[qi] {
				continue
			}
			if r.whole.packed() {
				r.pair.QStarts, r.pair.KStarts = q.localStarts(r.whole.QStarts), k.localStarts(r.whole.QStarts)
			}
			if err := compute(qi, ki, q, k); err != nil {
				return err
			}
			r.begun[qi] = true
		}
	}
	return nil
}

func ringForward(ranks SendReceiver, c Options, j forwardJob, ws snug.View) error {
	r, err := newRing(ranks, &c)
	if err != nil {
		return err
	}
	tensors := []tensor{{name: "q", view: j.q}, {name: "k", view: j.k}, {name: "v", view: j.v}, {name: "out", view: j.out}}
	at := r.whole.ringForwardRegions(r.size, j.q.DType())
	if err := r.check(tensors, j.lse, ws, true, at.regions); err != nil {
		return err
	}
	if r.size == 1 {
		return forward(j)
	}
	if err := r.agree(ringForwards, ws); err != nil {
		return err
	}
	f := ringForwardCall{ring: r, job: j, at: at}
	f.ws = ws
	defer f.flight.join()
	return f.run()
}

// ringForwardCall is a call of RingForward.
type ringForwardCall struct {
	ring
	job forwardJob
	at  ringForwardRegions
}

func (f *ringForwardCall) run() error {
	f.keys = [2]snug.View{f.at.keys[0].of(f.ws), f.at.keys[1].of(f.ws)}
	if err := f.moveKeys(f.job.k, f.job.v, f.keys[0], false); err != nil {
		return err
	}
	for step := range f.size {
		if step < f.size-1 {
			f.flight.begin(func() error { return f.sendKeys(step) })
		}
		if err := f.pairs(f.owner(step), f.compute); err != nil {
			return err
		}
		if err := f.flight.wait(); err != nil {
			return err
		}
		f.keys[0], f.keys[1] = f.keys[1], f.keys[0]
	}
	out, lse := f.at.out.of(f.ws), f.at.lse.of(f.ws)
	for _, s := range f.queries {
		if err := f.moveRows(f.job.out, f.local.Out, f.ofQueries(out, s, f.whole.DimV), s, f.whole.Heads, f.whole.DimV, true); err != nil {
			return err
		}
		if f.job.lse.Len() == 0 {
			continue
		}
		if err := f.moveNumbers(f.job.lse, f.ofQueries(lse, s, 1), s, true); err != nil {
			return err
		}
	}
	return nil
}

// compute computes the attention of a span of queries to a span of keys, and merges it into the results.
func (f *ringForwardCall) compute(qi, _ int, q, k span) error {
	c := f.pair
	out, lse := f.ofQueries(f.at.out.of(f.ws), q, c.DimV), f.ofQueries(f.at.lse.of(f.ws), q, 1)
	part, wide, partLSE := f.top(f.at.part, q, c.Heads, c.DimV), f.top(f.at.wide, q, c.Heads, c.DimV), f.top(f.at.partLSE, q, c.Heads, 1)
	first := !f.begun[qi]
	if first {
		c.Sinks.X = f.whole.Sinks.X // which count once
		wide, partLSE = out, lse
		if f.dtype == snug.F32 {
			part = out
		}
	}
	keys, values := f.ofKeys(f.keys[0], k)
	c.Q = f.local.Q
	err := forward(forwardJob{out: part, lse: partLSE, q: after(f.job.q, q.at*c.Q.Row), k: keys, v: values, c: c})
	if err == nil && f.dtype != snug.F32 {
		err = f.cast(wide, part, c.DimV, false)
	}
	if err != nil || first {
		return err
	}
	return merge(mergeJob{out: out, lse: lse, out1: out, lse1: lse, out2: wide, lse2: partLSE, c: c})
}
