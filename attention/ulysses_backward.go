package attention

import "github.com/snug-ml/snug"

// UlyssesBackward is [Backward] over a sequence whose rows are divided among ranks. All ranks call
// it at the same time, with the Options of [UlyssesForward] and with the operands and results of
// their own rows, and get the gradients of these rows.
//
// dq has the bits of Backward. So have dk and dv if Size divides KVHeads, without KLens. If
// several ranks have a key head, its gradients, of the type of k, are added in float32 in the
// order of the ranks.
//
// Sinks.Grad, which is 0 for the heads of other ranks, and Bias.Grad receive the part of the rank's
// heads. The gradient is the sum over the ranks, as for all weights.
//
// ws is a workspace of at least the second length of [Options.UlyssesWorkspaceLen]. It may be the
// one of UlyssesForward. Memory, errors and what cannot be divided are as in UlyssesForward.
func UlyssesBackward[V snug.Vector, L snug.Vector32](ranks AllToAller, dq, dk, dv V, dout, q, k, v, out V, lse L, c Options, ws L) error {
	return ulyssesBackward(ranks, c, backwardJob{
		dq: snug.ViewOf(dq), dk: snug.ViewOf(dk), dv: snug.ViewOf(dv), dout: snug.ViewOf(dout),
		q: snug.ViewOf(q), k: snug.ViewOf(k), v: snug.ViewOf(v), out: snug.ViewOf(out),
		lse: snug.ViewOf(lse), delta: snug.ViewOf(ws), c: c,
	})
}

func ulyssesBackward(ranks AllToAller, c Options, j backwardJob) error {
	u, err := newUlysses(ranks, &c)
	if err != nil {
		return err
	}
	tensors := []tensor{
		{name: "q", view: j.q}, {name: "k", view: j.k}, {name: "v", view: j.v}, {name: "out", view: j.out},
		{name: "dq", view: j.dq}, {name: "dk", view: j.dk}, {name: "dv", view: j.dv}, {name: "dout", view: j.dout},
	}
	at := u.whole.ulyssesRegions(u.size, j.q.DType(), true, c.GradLSE.Len() > 0)
	if err := u.check(tensors, j.lse, j.delta, false, at.regions); err != nil {
		return err
	}
	if u.size == 1 {
		return backward(j)
	}
	if err := u.agree(ulyssesBackwards, j.delta, true, u.local.GradLSE.Len() > 0); err != nil {
		return err
	}
	if err := u.clear(u.whole.Sinks.Grad, u.whole.Bias.Grad); err != nil {
		return err
	}
	if u.whole.Batch == 0 || u.heads == 0 || u.rowsQ == 0 && u.rowsK == 0 { // resolve forgets the batch of no rows
		return u.clearKeys(j.dk, j.dv)
	}
	u.begin(j.delta, at, 2*u.whole.DimV)
	return u.backward(j)
}

// clear sets vectors to 0.
func (u *ulysses) clear(vectors ...snug.View) error {
	for _, v := range vectors {
		if err := u.copyRows(rowsJob{dst: v, batch: 1, heads: 1, n: 1, dim: v.Len()}); err != nil {
			return err
		}
	}
	return nil
}

// clearKeys sets the gradients of keys that no head reads to 0.
func (u *ulysses) clearKeys(dk, dv snug.View) error {
	c, batch := &u.whole, u.local.batches()
	return u.copyRows(
		rowsJob{dst: dk, to: u.local.K, batch: batch, heads: c.KVHeads, n: u.usedK, dim: c.Dim},
		rowsJob{dst: dv, to: u.local.V, batch: batch, heads: c.KVHeads, n: u.usedK, dim: c.DimV},
	)
}

func (u *ulysses) backward(j backwardJob) error {
	c := &u.whole
	q, k, v, err := u.load(j.q, j.k, j.v)
	if err != nil {
		return err
	}
	outs, lse := u.at.out.of(u.ws), u.at.lse.of(u.ws)
	middle := u.heads * c.DimV
	if u.rowsQ > 0 {
		err = u.toHeads(outs, 2*middle, u.rowsQ,
			column{v: j.out, st: u.local.Out, dim: c.DimV}, column{v: j.dout, st: u.local.Out, dim: c.DimV, first: middle})
		if err == nil {
			err = u.numbersToHeads(lse, j.lse)
		}
	}
	if err == nil && u.local.GradLSE.Len() > 0 {
		u.inner.GradLSE = u.at.dlse.of(u.ws)
		err = u.numbersToHeads(u.inner.GradLSE, u.local.GradLSE)
	}
	if err != nil {
		return err
	}
	dq, dkv := u.at.dq.of(u.ws), u.at.dkv.of(u.ws)
	if c.KLens != nil { // unused keys at the end may be in no sequence, see number
		if err := u.clear(dkv); err != nil {
			return err
		}
	}
	first := u.keyHeads * c.Dim
	err = backward(backwardJob{
		dq: dq, dk: dkv, dv: after(dkv, first), dout: after(outs, middle), q: q, k: k, v: v, out: outs, lse: lse,
		delta: u.at.delta.of(u.ws), c: u.inner,
	})
	if err == nil && u.rowsQ > 0 {
		err = u.toRows(dq, u.heads*c.Dim, u.rowsQ, u.usedQ, column{v: j.dq, st: u.local.Q, dim: c.Dim})
	}
	if err != nil || u.rowsK == 0 {
		return err
	}
	return u.keysToRows(j.dk, j.dv, dkv)
}

// keysToRows exchanges the gradients of keys and values. It adds in float32 where several ranks have a key head.
func (u *ulysses) keysToRows(dk, dv, records snug.View) error {
	c := &u.whole
	first, record := u.keyHeads*c.Dim, u.keyHeads*(c.Dim+c.DimV)
	k := column{v: dk, st: u.local.K, keys: true, dim: c.Dim}
	v := column{v: dv, st: u.local.V, keys: true, dim: c.DimV, first: first}
	if u.replicas == 1 || u.dtype == snug.F32 {
		return u.toRows(records, record, u.rowsK, u.usedK, k, v)
	}
	sums, batch := u.at.sums.of(u.ws), u.local.batches()
	n := batch * c.KVHeads * u.rowsK * c.Dim
	sumK, sumV := k, v
	sumK.v, sumK.st = slice(sums, 0, n), headMajor(c.KVHeads, u.rowsK, c.Dim)
	sumV.v, sumV.st = slice(sums, n, sums.Len()), headMajor(c.KVHeads, u.rowsK, c.DimV)
	if err := u.toRows(records, record, u.rowsK, u.usedK, sumK, sumV); err != nil {
		return err
	}
	for _, x := range [...][2]column{{k, sumK}, {v, sumV}} {
		err := u.copyRows(rowsJob{
			dst: x[0].v, src: x[1].v, to: x[0].st, from: x[1].st, batch: batch, heads: c.KVHeads, n: u.usedK, dim: x[0].dim,
		})
		if err != nil {
			return err
		}
	}
	return nil
}
