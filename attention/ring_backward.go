package attention

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/device"
)

// RingBackward is [Backward] over a sequence whose rows are divided among ranks. All ranks call
// it at the same time, with the Options of [RingForward] and with the operands and results of
// their own rows, and get the gradients of these rows.
//
// Keys and values pass as in RingForward. Their gradients pass one step behind them, in float32,
// and arrive at the rank that owns the keys. The gradients of a step are rounded to the type of q,
// and their sums over steps are float32 in the workspace. The results are the same in every run
// and for every GOMAXPROCS.
//
// Sinks.Grad receives the part of the rank's queries. The gradient is its sum over the ranks, as
// for all weights. It is computed from dout_i · out_i with the rounded out, see Precision, unless
// there is one rank.
//
// ws is a workspace of at least the second length of [Options.RingWorkspaceLen]. It may be the
// one of RingForward. Memory, errors and what is not for rings are as in RingForward.
func RingBackward[V snug.Vector, L snug.Vector32](ranks SendReceiver, dq, dk, dv V, dout, q, k, v, out V, lse L, c Options, ws L) error {
	return ringBackward(ranks, c, backwardJob{
		dq: snug.ViewOf(dq), dk: snug.ViewOf(dk), dv: snug.ViewOf(dv), dout: snug.ViewOf(dout),
		q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v), out: snug.ViewOf(out),
		lse: snug.ViewOf(lse), delta: snug.ViewOf(ws), c: c,
	})
}

// ringBackwardRegions are the parts of the workspace of RingBackward.
type ringBackwardRegions struct {
	regions
	keys         [2]region // and values, of the present step and of the next
	sums         [3]region // gradients of keys and values: sent, received, computed
	q, dq        region
	partQ, partK region // gradients of one pair of spans, of the type
	lse, dlse    region
	delta        region
	sinks        region
}

func (c *Options) ringBackwardRegions(size int, dt snug.DType, dlse bool) (r ringBackwardRegions) {
	if size == 1 {
		r.delta = region{0, c.queries(), c.queries(), snug.F32}
		r.words = c.queries()
		return r
	}
	pieceQ, pieceK, batch := ringPiece(c.SeqQ, size), ringPiece(c.SeqK, size), c.batches()
	for i := range r.keys {
		r.keys[i] = r.take(dt, batch, c.KVHeads, 2*pieceK, c.Dim+c.DimV)
	}
	for i := range r.sums {
		r.sums[i] = r.take(snug.F32, batch, c.KVHeads, 2*pieceK, c.Dim+c.DimV)
	}
	r.partK = r.take(dt, batch, c.KVHeads, pieceK, c.Dim+c.DimV)
	r.q, r.dq = r.take(dt, batch, c.Heads, 2*pieceQ, c.Dim), r.take(snug.F32, batch, c.Heads, 2*pieceQ, c.Dim)
	r.partQ = r.take(dt, batch, c.Heads, pieceQ, c.Dim)
	r.lse, r.delta = r.take(snug.F32, batch, c.Heads, 2*pieceQ), r.take(snug.F32, batch, c.Heads, pieceQ)
	if dlse {
		r.dlse = r.take(snug.F32, batch, c.Heads, 2*pieceQ)
	}
	if c.Sinks.Grad.Len() > 0 {
		r.sinks = r.take(snug.F32, c.Heads)
	}
	r.words = max(r.words, headersLen(1))
	return r
}

func ringBackward(ranks SendReceiver, c Options, j backwardJob) error {
	r, err := newRing(ranks, &c)
	if err != nil {
		return err
	}
	tensors := []tensor{
		{name: "q", view: j.q}, {name: "k", view: j.k}, {name: "v", view: j.v}, {name: "out", view: j.out},
		{name: "dq", view: j.dq}, {name: "dk", view: j.dk}, {name: "dv", view: j.dv}, {name: "dout", view: j.dout},
	}
	at := r.whole.ringBackwardRegions(r.size, j.q.DType(), c.GradLSE.Len() > 0)
	if err := r.check(tensors, j.lse, j.delta, false, at.regions); err != nil {
		return err
	}
	if r.size == 1 {
		return backward(j)
	}
	if err := r.agree(ringBackwards, j.delta); err != nil {
		return err
	}
	b := ringBackwardCall{ring: r, job: j, at: at}
	b.ws = j.delta
	if grad := r.whole.Sinks.Grad; grad.Len() > 0 {
		if err := b.clear(grad); err != nil {
			return err
		}
	}
	defer b.flight.join()
	return b.run()
}

// ringBackwardCall is a call of RingBackward.
type ringBackwardCall struct {
	ring
	job   backwardJob
	at    ringBackwardRegions
	sums  [3]snug.View       // as in ringBackwardRegions
	added [len(spans{})]bool // whether a span of keys has gradients of this step
}

func (b *ringBackwardCall) clear(v snug.View) error {
	return b.copyRows(rowsJob{dst: v, batch: 1, heads: 1, n: 1, dim: v.Len()})
}

func (b *ringBackwardCall) run() error {
	b.keys = [2]snug.View{b.at.keys[0].of(b.ws), b.at.keys[1].of(b.ws)}
	for i, sum := range b.at.sums {
		b.sums[i] = sum.of(b.ws)
	}
	if err := b.load(); err != nil {
		return err
	}
	for step := range b.size {
		b.flight.begin(func() error { return b.exchange(step) })
		b.added = [len(spans{})]bool{}
		if err := b.pairs(b.owner(step), b.compute); err != nil {
			return err
		}
		if err := b.flight.wait(); err != nil {
			return err
		}
		if err := b.addStep(step); err != nil {
			return err
		}
		b.keys[0], b.keys[1] = b.keys[1], b.keys[0]
	}
	home := slice(b.sums[1], 0, b.keysLen(b.rank))
	if err := b.send("gradients", home, slice(b.sums[0], 0, b.keysLen(b.next()))); err != nil {
		return err
	}
	return b.store(home)
}

// load copies the rank's keys, values and queries and what belongs to them to the workspace.
func (b *ringBackwardCall) load() error {
	j := &b.job
	if err := b.moveKeys(j.k, j.v, b.keys[0], false); err != nil {
		return err
	}
	q, lse := b.at.q.of(b.ws), b.at.lse.of(b.ws)
	for _, s := range b.queries {
		err := b.moveRows(j.q, b.local.Q, b.ofQueries(q, s, b.whole.Dim), s, b.whole.Heads, b.whole.Dim, false)
		if err == nil {
			err = b.moveNumbers(j.lse, b.ofQueries(lse, s, 1), s, false)
		}
		if err == nil && b.local.GradLSE.Len() > 0 {
			err = b.moveNumbers(b.local.GradLSE, b.ofQueries(b.at.dlse.of(b.ws), s, 1), s, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// exchange sends the keys of a step on, and the gradients of the step before.
func (b *ringBackwardCall) exchange(step int) error {
	if step < b.size-1 {
		if err := b.sendKeys(step); err != nil {
			return err
		}
	}
	if step == 0 {
		return nil
	}
	n, m := b.keysLen(b.owner(step-1)), b.keysLen(b.owner(step))
	return b.send("gradients", slice(b.sums[1], 0, m), slice(b.sums[0], 0, n))
}

// addStep adds the gradients of a step to the received ones. The sum is sent next.
func (b *ringBackwardCall) addStep(step int) error {
	for i, s := range b.keySpans(b.owner(step)) {
		k, v := b.ofKeys(b.sums[2], s)
		toK, toV := b.ofKeys(b.sums[1], s)
		var err error
		switch {
		case s.Len() == 0:
		case step == 0 && !b.added[i]:
			if err = b.clear(k); err == nil {
				err = b.clear(v)
			}
		case step > 0 && b.added[i]:
			if err = b.cast(toK, k, b.whole.Dim, true); err == nil {
				err = b.cast(toV, v, b.whole.DimV, true)
			}
		}
		if err != nil {
			return err
		}
	}
	sum := 1
	if step == 0 {
		sum = 2
	}
	b.sums[0], b.sums[sum] = b.sums[sum], b.sums[0]
	return nil
}

// compute computes the gradients for a span of queries and a span of keys, and adds them to the sums.
func (b *ringBackwardCall) compute(qi, ki int, q, k span) error {
	c, j := b.pair, &b.job
	c.Out = b.local.Out
	if b.local.GradLSE.Len() > 0 {
		c.GradLSE = b.ofQueries(b.at.dlse.of(b.ws), q, 1)
	}
	dq := b.ofQueries(b.at.dq.of(b.ws), q, c.Dim)
	dk, dv := b.ofKeys(b.sums[2], k)
	n := dk.Len()
	partQ, partK := b.top(b.at.partQ, q, c.Heads, c.Dim), slice(b.at.partK.of(b.ws), 0, n+dv.Len())
	partK, partV := slice(partK, 0, n), slice(partK, n, partK.Len())
	direct := b.dtype == snug.F32 // the first part of a sum is computed in place
	toQ, toK := direct && !b.begun[qi], direct && !b.added[ki]
	if toQ {
		partQ = dq
	}
	if toK {
		partK, partV = dk, dv
	}
	keys, values := b.ofKeys(b.keys[0], k)
	at := q.at * c.Out.Row
	job := backwardJob{
		dq: partQ, dk: partK, dv: partV, dout: after(j.dout, at), q: b.ofQueries(b.at.q.of(b.ws), q, c.Dim), k: keys, v: values,
		out: after(j.out, at), lse: b.ofQueries(b.at.lse.of(b.ws), q, 1), delta: b.top(b.at.delta, q, c.Heads, 1), c: c,
	}
	err := backward(job)
	if err == nil && !toQ {
		err = b.cast(dq, partQ, c.Dim, b.begun[qi])
	}
	if err == nil && !toK {
		if err = b.cast(dk, partK, c.Dim, b.added[ki]); err == nil {
			err = b.cast(dv, partV, c.DimV, b.added[ki])
		}
	}
	b.added[ki] = true
	if err == nil && !b.begun[qi] {
		err = b.addSinks(job)
	}
	return err
}

// addSinks adds the part of a job's queries to the gradients in the sinks. It needs the delta that the job computed.
func (b *ringBackwardCall) addSinks(job backwardJob) error {
	sinks := b.whole.Sinks
	if sinks.Grad.Len() == 0 {
		return nil
	}
	part := b.at.sinks.of(b.ws)
	job.c.Sinks = Sinks{X: sinks.X, Grad: part}
	var err error
	if job.c, err = job.c.resolve(); err != nil {
		return err
	}
	if err := device.Run(b.dev, sinkJob{job}); err != nil {
		return err
	}
	return b.cast(sinks.Grad, part, sinks.Grad.Len(), true)
}

// sinkJob is the part of a backwardJob that computes the gradients in sinks from lse and delta.
type sinkJob struct{ backwardJob }

// Kernel implements [driver.Job].
func (*sinkJob) Kernel() string { return "attention.sinks" }

// Run implements [driver.Job].
func (j sinkJob) Run() { sinkTask.Run(j.c.Heads, j.backwardJob) }

// store copies the gradients to the caller's tensors.
func (b *ringBackwardCall) store(home snug.View) error {
	if err := b.moveKeys(b.job.dk, b.job.dv, home, true); err != nil {
		return err
	}
	dq := b.at.dq.of(b.ws)
	for _, s := range b.queries {
		if err := b.moveRows(b.job.dq, b.local.Q, b.ofQueries(dq, s, b.whole.Dim), s, b.whole.Heads, b.whole.Dim, true); err != nil {
			return err
		}
	}
	return nil
}
