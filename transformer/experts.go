package transformer

import (
	"cmp"
	"context"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/quant8"
)

// This file has the stage of a layer with experts:
//
//	y = x + Σ weight·down(act(gate·h)·up·h)   over the experts that the router chooses for a row, h = norm(x)
//
// Rows are grouped by expert, without padding: the rows of an expert are copied into one tensor, and the products of
// the expert run over this tensor only. The stage keeps its output and the router's logits. The backward step routes by
// these logits again, so it chooses the same experts, and recomputes the inner activations, one expert at a time.
// Besides tensors of all rows, a step holds the inner activations of one expert at a time, at most of the largest group.

// expertsHalf is the second half of a layer with experts.
type expertsHalf struct {
	*Model
	index   int
	norm    norm
	router  linear
	experts []expert
	entered uint64 // number of the last call in which the layer's choice was added to the balancing loss
}

type expertsSaved struct {
	halfSaved
	logits *tensor // of the router
}

func (s *expertsSaved) tensors(list []*tensor) []*tensor {
	return append(s.halfSaved.tensors(list), s.logits)
}

// expert is an MLP with a gate.
type expert struct {
	in, down []linear // in: gate and up
	keys     []string // of its matrices in Options.Pages
}

// expertsLayer makes the second stage of a layer with experts.
func (m *Model) expertsLayer(layer int) *expertsHalf {
	c, n, block := &m.config, &m.config.names().experts, m.config.block(layer)
	b := &expertsHalf{Model: m, index: 2*layer + 1, norm: m.norm(block + m.config.names().mlpNorm), experts: make([]expert, c.Experts.Count)}
	b.router = m.linear(block+n.router, c.Dim, c.Experts.Count)
	m.prefetcher, _ = m.options.Pages.(quant8.Prefetcher)
	for i := range b.experts {
		e := &b.experts[i]
		part := func(part string, in, out int) linear {
			l := m.linear(block+n.of(i, part), in, out)
			e.keys = append(e.keys, pageKey(l.weight))
			return l
		}
		e.in = []linear{part(n.gate, c.Dim, c.Experts.Hidden), part(n.up, c.Dim, c.Experts.Hidden)}
		e.down = []linear{part(n.down, c.Experts.Hidden, c.Dim)}
		m.addLayers(e.in, e.down)
	}
	return b
}

func (b *expertsHalf) Forward(ctx context.Context, x *tensor) (*tensor, error) {
	o := b.begins(b.index, b.forwardPhase())
	y := o.get(b.config.Dim)
	b.pool.put(b.forward(ctx, o, stats{}, y, x))
	return y, o.err
}

func (b *expertsHalf) ForwardSave(ctx context.Context, x *tensor) (*tensor, saved, error) {
	o := b.begins(b.index, b.forwardPhase())
	s := newSaved[expertsSaved](b.Model)
	s.y, s.norm = o.get(b.config.Dim), o.stats(b.norm)
	s.logits = b.forward(ctx, o, s.norm, s.y, x)
	return s.y, s, o.err
}

// Resave makes the saved set again. It computes only the norm and the router's logits.
func (b *expertsHalf) Resave(_ context.Context, x *tensor) (saved, error) {
	o := b.begins(b.index, b.forwardPhase())
	s := newSaved[expertsSaved](b.Model)
	s.y, s.norm = o.get(b.config.Dim), o.stats(b.norm)
	h := o.get(b.config.Dim)
	s.logits = b.logits(o, s.norm, h, x)
	b.pool.put(h)
	return s, o.err
}

// logits computes h = norm(x), and returns the router's logits.
func (b *expertsHalf) logits(o *ops, s stats, h, x *tensor) *tensor {
	logits := o.get(b.config.Experts.Count)
	o.norm(h, s, x, b.norm)
	o.linear(logits, h, &b.router, 0)
	return logits
}

// forward computes y, and returns the router's logits.
func (b *expertsHalf) forward(ctx context.Context, o *ops, s stats, y, x *tensor) *tensor {
	h := o.get(b.config.Dim)
	logits := b.logits(o, s, h, x)
	o.route(logits)
	b.enter(o, logits)
	o.clear(y)
	for i := range b.experts {
		e := &b.experts[i]
		if !b.begin(ctx, o, i) {
			continue
		}
		in := o.pick(h)
		gate, up := e.project(o, in)
		o.activateExpert(up, gate, up)
		b.pool.put(gate)
		o.linear(in, up, &e.down[0], 0) // in is no longer needed as input
		b.pool.put(up)
		o.addWeighted(y, in)
		b.pool.put(in)
	}
	b.finish(o)
	o.unroute()
	b.pool.put(h)
	o.do(func() error { return fused.Add(y.View, y.View, x.View) })
	return logits
}

// project computes gate and up.
func (e *expert) project(o *ops, in *tensor) (gate, up *tensor) {
	gate, up = o.get(o.config.Experts.Hidden), o.get(o.config.Experts.Hidden)
	o.linear(gate, in, &e.in[0], 0)
	o.linear(up, in, &e.in[1], 0)
	return gate, up
}

// begin makes the operations that follow run over the rows of an expert, and asks for the matrices of the next expert
// that has rows. It reports whether the expert has any.
func (b *expertsHalf) begin(ctx context.Context, o *ops, expert int) bool {
	o.do(func() error { return nil }) // the pool may have failed
	if o.err = cmp.Or(o.err, ctx.Err()); o.err != nil || !o.routed.group(expert) {
		return false
	}
	b.pool.group(len(o.routed.groupRows))
	if b.prefetcher != nil {
		if next := o.routed.after(expert); next < len(b.experts) {
			b.prefetcher.Prefetch(b.experts[next].keys...)
		}
	}
	return true
}

// finish makes the operations that follow run over all rows.
func (b *expertsHalf) finish(o *ops) { b.pool.whole(o.batch.rows) }

// Backward turns the gradient of y, in place, into the gradient of x.
func (b *expertsHalf) Backward(ctx context.Context, x *tensor, kept saved, d *tensor) (*tensor, error) {
	if b.index < b.first {
		return d, nil
	}
	o, s := b.begins(b.index, meter.Backward), kept.(*expertsSaved)
	h, dh := o.get(b.config.Dim), o.get(b.config.Dim)
	o.norm(h, stats{}, x, b.norm)
	o.route(s.logits)
	o.routed.dweights = o.stat(b.config.Experts.Chosen)
	o.clear(dh)
	for i := range b.experts {
		if b.begin(ctx, o, i) {
			b.expertBackward(o, &b.experts[i], dh, d, h)
		} else {
			b.expertIdle(o, &b.experts[i])
		}
	}
	b.finish(o)
	dlogits := o.get(b.config.Experts.Count)
	o.routeBackward(dlogits, s.logits)
	o.unroute()
	o.weightGradients(h, &b.router, dlogits)
	o.inputGradient(dh, dlogits, &b.router, 1)
	o.done(b.router.weight, b.router.bias)
	b.pool.put(h, dlogits)
	o.normBackward(d, dh, s.norm, x, b.norm, 1)
	b.pool.put(dh)
	return d, o.err
}

// expertBackward adds an expert's part of the gradient of h to dh, given the gradient d of y. It sets the gradients of
// the router's weights for the rows of the expert, and adds to the gradients of the expert's parameters.
func (b *expertsHalf) expertBackward(o *ops, e *expert, dh, d, h *tensor) {
	in := o.pick(h)
	gate, up := e.project(o, in)
	act, out := o.get(b.config.Experts.Hidden), o.get(b.config.Dim)
	o.activateExpert(act, gate, up)
	o.linear(out, act, &e.down[0], 0)
	o.addWeightedBackward(out, d)
	dact := o.linearBackward(act, e.down, out)
	b.pool.put(out)
	o.activateExpertBackward(dact, gate, up)
	b.pool.put(dact)
	din := o.linearBackward(in, e.in, gate, up)
	b.pool.put(gate, up)
	o.addPicked(dh, din)
	b.pool.put(din)
}

// expertIdle completes the gradients of an expert that has no rows.
func (b *expertsHalf) expertIdle(o *ops, e *expert) {
	for _, list := range [...][]linear{e.in, e.down} {
		for i := range list {
			l := &list[i]
			o.addNothing(l.weight, l.bias)
			if a := l.adapter; a != nil {
				o.addNothing(a.a, a.b, a.m)
			}
		}
	}
}

// addNothing completes gradients to which this micro-batch adds nothing.
func (o *ops) addNothing(list ...*Param) {
	for _, p := range list {
		if p == nil || !p.Trains {
			continue
		}
		o.do(func() error {
			acc, into, err := o.gradient(p)
			if err != nil || into.Beta == 1 {
				return err
			}
			return scale(acc, p.Len(), into.Beta)
		})
	}
	o.done(list...)
}

// clear sets the elements of x to 0.
func (o *ops) clear(x *tensor) {
	o.do(func() error { return scale(x.View, x.Len(), 0) })
}

// scale multiplies n elements by beta, as a matrix product whose inner dimension is 0. With a beta of 0 it does not read
// them.
func scale(v snug.View, n int, beta float32) error {
	none := part(v, 0, 0)
	return amp.MatMul(v, none, none, amp.MatMulOptions{M: 1, N: n, Into: snug.Into{Beta: beta}})
}
