package transformer

import (
	"context"

	"github.com/snug-ml/snug/meter"
)

// attentionHalf is z = x + out(attention(rope(norm(q·h)), rope(norm(k·h)), v·h)). The first one begins with the
// embedding, so that nothing holds x while other stages compute.
type attentionHalf struct {
	*Model
	index        int
	norm         norm
	qkv, out     []linear // qkv: three layers, or one for q, k and v together
	qNorm, kNorm norm     // without weights if q and k have no norms
	post         norm     // of the output, without weights if there is none
	sinks        *Param   // nil for none
	angles       *angles
	window       int // keys that a query sees; 0 for all
}

type attentionSaved struct {
	halfSaved
	q, k, v  *tensor // q and k before their norms, if they have norms, or after the rope
	att, lse *tensor
}

func (s *attentionSaved) tensors(list []*tensor) []*tensor {
	return append(s.halfSaved.tensors(list), s.q, s.k, s.v, s.att, s.lse)
}

func (b *attentionHalf) queries() int { return b.config.Heads * b.config.HeadDim }
func (b *attentionHalf) keys() int    { return b.config.KVHeads * b.config.HeadDim }
func (b *attentionHalf) frees() bool  { return b.config.freesSaved() }

// freesSaved reports whether the backward step of attention frees what it keeps as soon as it can. Where queries are as
// wide as the stage's output, gradients take that memory.
func (c *Config) freesSaved() bool { return c.Heads*c.HeadDim == c.Dim }

// keysSeen returns the window, or 0 if no sequence of the batch is longer than it.
func (b *attentionHalf) keysSeen() int {
	if b.window >= b.batch.longest {
		return 0
	}
	return b.window
}

// enter returns the input of the stage, and exit frees what enter made.
func (b *attentionHalf) enter(o *ops, x *tensor) *tensor {
	if b.index > 0 {
		return x
	}
	return o.embed()
}

func (b *attentionHalf) exit(x *tensor) {
	if b.index == 0 {
		b.pool.put(x)
	}
}

// project computes q, k and v from the normalized input.
func (b *attentionHalf) project(o *ops, s stats, x *tensor) (q, k, v *tensor) {
	h := o.get(b.config.Dim)
	q, k, v = b.makeQKV(o)
	o.norm(h, s, x, b.norm)
	for i, y := range [...]*tensor{q, k, v} {
		if y != nil {
			o.linear(y, h, &b.qkv[i], 0)
		}
	}
	b.pool.put(h)
	return q, k, v
}

// makeQKV makes tensors for q, k and v, or one for all three.
func (b *attentionHalf) makeQKV(o *ops) (q, k, v *tensor) {
	if len(b.qkv) == 1 {
		return o.get(b.queries() + 2*b.keys()), nil, nil
	}
	return o.get(b.queries()), o.get(b.keys()), o.get(b.keys())
}

// ready applies the rope to q and k. If they have norms, it first normalizes them into
// new tensors, which the caller frees, and writes the statistics to qs and ks.
func (b *attentionHalf) ready(o *ops, qs, ks stats, q, k *tensor) (*tensor, *tensor) {
	if b.config.QKNorm {
		from, fromK := q, k
		q, k = o.get(b.queries()), o.get(b.keys())
		o.norm(q, qs, from, b.qNorm)
		o.norm(k, ks, fromK, b.kNorm)
	}
	o.rotate(q, b.config.Heads, b.angles)
	o.rotate(k, b.config.KVHeads, b.angles)
	return q, k
}

func (b *attentionHalf) Forward(_ context.Context, x *tensor) (*tensor, error) {
	o := b.begins(b.index, b.forwardPhase())
	x = b.enter(o, x)
	q, k, v := b.project(o, stats{}, x)
	if b.config.QKNorm {
		o.norm(q, stats{}, q, b.qNorm)
		o.norm(k, stats{}, k, b.kNorm)
	}
	o.rotate(q, b.config.Heads, b.angles)
	o.rotate(k, b.config.KVHeads, b.angles)
	att := o.get(b.queries())
	o.attend(att, nil, q, k, v, b)
	b.pool.put(q, k, v)
	z := o.get(b.config.Dim)
	o.leave(z, x, att, &b.out[0], b.post, nil)
	b.pool.put(att)
	b.exit(x)
	return z, o.err
}

// save computes everything except the output, whose tensor it allocates.
func (b *attentionHalf) save(o *ops, x *tensor) *attentionSaved {
	s := newSaved[attentionSaved](b.Model)
	s.y, s.norm = o.get(b.config.Dim), o.stats(b.norm)
	o.keepPost(&s.halfSaved, b.post)
	s.att, s.lse = o.get(b.queries()), o.keepScores()
	s.q, s.k, s.v = b.project(o, s.norm, x)
	q, k := b.ready(o, stats{}, stats{}, s.q, s.k)
	o.attend(s.att, s.lse, q, k, s.v, b)
	if b.config.QKNorm {
		b.pool.put(q, k)
	}
	return s
}

func (b *attentionHalf) ForwardSave(_ context.Context, x *tensor) (*tensor, saved, error) {
	o := b.begins(b.index, b.forwardPhase())
	x = b.enter(o, x)
	s := b.save(o, x)
	o.leave(s.y, x, s.att, &b.out[0], b.post, &s.halfSaved)
	b.exit(x)
	return s.y, s, o.err
}

// Resave leaves out the last product, unless its norm needs it.
func (b *attentionHalf) Resave(_ context.Context, x *tensor) (saved, error) {
	o := b.begins(b.index, b.forwardPhase())
	x = b.enter(o, x)
	s := b.save(o, x)
	if b.post.weight != nil {
		o.leave(s.y, x, s.att, &b.out[0], b.post, &s.halfSaved)
	}
	b.exit(x)
	return s, o.err
}

// Backward turns the gradient of z, in place, into the gradient of x. That of the first stage goes to the embedding.
func (b *attentionHalf) Backward(_ context.Context, x *tensor, kept saved, d *tensor) (*tensor, error) {
	o := b.begins(b.index, meter.Backward)
	if b.index >= b.first {
		b.backward(o, x, kept.(*attentionSaved), d)
	}
	if b.index > 0 {
		return d, o.err
	}
	o.embedBackward(d)
	b.pool.put(d)
	return &b.input, o.err
}

func (b *attentionHalf) backward(o *ops, x *tensor, s *attentionSaved, d *tensor) {
	x = b.enter(o, x)
	if b.frees() { // the next stage, which read y, is done with its backward step
		b.pool.put(s.y)
		s.y = nil
	}
	dout := o.leaveBackward(d, b.post, &s.halfSaved)
	out := &b.out[0]
	o.weightGradients(s.att, out, dout)
	datt := o.get(b.queries())
	o.inputGradients(datt, dout, s.att, o.inner(s.att, b.out)[0], out, 0)
	o.done(out.weight, out.bias)
	if dout != d {
		b.pool.put(dout)
	}
	var qs, ks stats
	q, k := s.q, s.k
	if b.config.QKNorm {
		qs, ks = stats{rstd: o.stat(b.config.Heads)}, stats{rstd: o.stat(b.config.KVHeads)}
		q, k = b.ready(o, qs, ks, q, k)
	}
	dq, dk, dv := b.makeQKV(o)
	o.attendBackward(dq, dk, dv, datt, q, k, s.v, s.att, s.lse, b)
	b.pool.put(datt)
	o.rotateBack(dq, b.config.Heads, b.angles)
	o.rotateBack(dk, b.config.KVHeads, b.angles)
	if b.config.QKNorm {
		b.pool.put(q, k)
		o.normBackward(dq, dq, qs, s.q, b.qNorm, 0)
		o.normBackward(dk, dk, ks, s.k, b.kNorm, 0)
		b.pool.put(qs.rstd, ks.rstd)
	}
	if b.frees() {
		b.pool.put(s.att, s.q, s.k, s.v)
		s.att, s.q, s.k, s.v = nil, nil, nil, nil
	}
	h := o.get(b.config.Dim)
	if anyTrains(b.qkv) {
		o.norm(h, stats{}, x, b.norm)
	}
	dh := o.linearBackward(h, b.qkv, dq, dk, dv)
	b.pool.put(dq, dk, dv)
	o.normBackward(d, dh, s.norm, x, b.norm, 1)
	b.pool.put(dh)
	b.exit(x)
}
