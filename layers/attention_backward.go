package layers

import (
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
)

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *Attention) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	b.backward(p, x, kept.(*attentionSaved), dy, dy, 1)
	return dy
}

// backward computes dx = beta·dx + the gradient of x from the gradient d of what the block adds; dx may be d.
func (b *Attention) backward(p *Pass, x *Tensor, s *attentionSaved, d, dx *Tensor, beta float32) {
	if b.frees() { // the next stage, which read y, is done with its backward step
		p.Put(s.y)
		s.y = nil
	}
	dout := leaveBackward(p, d, &b.Out[0], b.Post, &s.blockSaved)
	out, opened := &b.Out[0], b.open(p, s)
	out.weightGradients(p, opened, dout)
	datt := p.Get(b.queries())
	out.inputGradients(p, datt, dout, opened, inner(p, opened, b.Out)[0], 0)
	p.Done(out.Weight, out.Bias)
	if b.shut(p, s, opened); b.Gated { // the gate becomes its gradient
		p.Do(func() error { return fused.GLUBackward(s.gate.View, datt.View, datt.View, s.gate.View, s.att.View) })
	}
	if dout != d {
		p.Put(dout)
	}
	var qs, ks, vs Stats
	q, k, v := s.q, s.k, s.v
	if !b.QNorm.none() {
		qs, ks, vs = b.QNorm.NewStats(p, b.queries()/max(1, b.QNorm.cols())), b.KNorm.NewStats(p, b.keys()/max(1, b.KNorm.cols())), b.VNorm.NewStats(p, b.KVHeads)
		q, k, v = b.ready(p, qs, ks, vs, q, k, v)
	} else if b.Reads != nil {
		k, v = b.Reads.read(p, b.keys())
	}
	dq, dk, dv := b.makeQKV(p, 3)
	b.attendBackward(p, dq, dk, dv, datt, q, k, v, s.att, s.lse)
	p.Put(datt)
	b.Keeps.addTo(p, dk, dv)
	if b.Reads != nil {
		b.Reads.add(p, dk, dv)
		p.Put(dk, dv)
		dk, dv = nil, nil
	}
	if !b.NormLast {
		b.rotate(p, dq, dk, fused.RotaryBackward)
	}
	if !b.QNorm.none() {
		b.drop(p, q, k, v)
		b.QNorm.Gradients(p, dq, dq, qs, s.q, 0)
		if b.Reads == nil {
			b.KNorm.Gradients(p, dk, dk, ks, s.k, 0)
			dv = b.valueGradients(p, dk, dv, vs, s)
		}
		p.Put(qs.mean, qs.rstd, ks.mean, ks.rstd, vs.mean, vs.rstd)
	}
	if b.NormLast {
		b.rotate(p, dq, dk, fused.RotaryBackward)
	}
	if b.frees() {
		p.Put(s.att, s.q, s.k, s.v)
		s.att, s.q, s.k, s.v = nil, nil, nil, nil
	}
	if b.Interleaved {
		all := p.Get(b.QKV[0].Out)
		b.interleave(p, all, dq, dk, dv, true)
		p.Put(dq, dk, dv)
		dq, dk, dv = all, nil, nil
	}
	if b.Gated {
		both := p.Get(b.QKV[0].Out)
		b.copyGate(p, both, dq, s.gate, true)
		p.Put(dq, s.gate)
		dq, s.gate = both, nil
	}
	h := p.Get(b.dim())
	if anyTrains(b.QKV) {
		b.Norm.Compute(p, h, Stats{}, x)
	}
	var dh *Tensor
	if b.Source == nil {
		dh = linearBackward(p, h, b.QKV, dq, dk, dv)
	} else {
		dh = linearBackward(p, h, b.QKV[:1], dq)
		b.onSource(p, func() { b.Source.backward(p, b.QKV[1:], dk, dv) })
	}
	p.Put(dq, dk, dv)
	b.Norm.Gradients(p, dx, dh, s.norm, x, beta)
	p.Put(dh)
}

// valueGradients turns the gradient of the normalized values into the gradient of v. Where k is v too it adds that to dk, and
// returns nil.
func (b *Attention) valueGradients(p *Pass, dk, dv *Tensor, vs Stats, s *attentionSaved) *Tensor {
	switch {
	case b.VNorm.none():
	case len(b.QKV) == 2:
		b.VNorm.Gradients(p, dk, dv, vs, s.k, 1)
		p.Put(dv)
		return nil
	default:
		b.VNorm.Gradients(p, dv, dv, vs, s.v, 0)
	}
	return dv
}

func (b *Attention) attendBackward(p *Pass, dq, dk, dv, dout, q, k, v, out, lse *Tensor) {
	c := b.Options(p)
	c.Sinks.Grad = b.sinkGradient(p)
	p.macs += 2.5 * float64(p.rows) * float64(p.Batch.Longest) * float64(b.queries())
	p.Do(func() error {
		if b.Plain {
			return b.plainBackward(p, dq, dk, dv, dout, q, k, v, lse, c)
		}
		ws, err := p.Workspace(b.Heads * p.Batch.Rows) // an element for each query and head
		if err != nil {
			return err
		}
		q, k, v := b.split(q, k, v)
		dq, dk, dv := b.split(dq, dk, dv)
		return attention.Backward(dq, dk, dv, dout.View, q, k, v, out.View, lse.View, c, ws)
	})
	b.addSinks(p)
}
