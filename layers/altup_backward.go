package layers

import (
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
)

// Backward implements [Layer].
func (b *AltUp) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	s := kept.(*altUpSaved)
	for _, w := range [...]*Param{b.Router.Weight, b.RouterNorm.Weight} {
		w.uses = 2
	}
	h := x
	if b.First != nil {
		h = b.First.widen(p, x)
	}
	streams, c, m := b.predict(p, h)
	n, ns, ls := p.Get(b.dim()), b.Norm.NewStats(p, 1), b.LaurelPost.NewStats(p, 1)
	b.Norm.Compute(p, n, ns, b.stream(p, 0, streams, b.Active))
	laurel, left, right := b.laurel(p, n, ls)
	z, y := p.Get(b.dim()), p.Get(b.dim())
	b.Attention.Post.Compute(p, z, Stats{}, s.attention.half)
	b.middle(p, z, streams, n, laurel)
	p.Put(laurel)
	b.MLP.Post.Compute(p, y, Stats{}, s.mlp.half)
	p.add(y, z)
	if b.Last != nil {
		all := p.Get(b.Streams * b.dim())
		p.copyTo(all, streams)
		b.finish(p, all, y)
		d := b.Last.narrowBackward(p, all, dy)
		p.Put(all, dy)
		dy = d
	}
	d := b.finishBackward(p, streams, y, dy)
	p.Put(y)
	b.MLP.backward(p, z, &s.mlp, d, d, 1)
	p.Put(z)
	p.times(d, half)
	b.enterBackward(p, s, streams, n, left, right, d, dy, ns, ls)
	p.Put(d, streams, ns.mean, ns.rstd, ls.mean, ls.rstd)
	dy = b.predictBackward(p, h, c, m, dy)
	p.Put(c)
	m.free(p)
	if b.First != nil {
		dx := b.First.widenBackward(p, x, dy)
		p.Put(dy, h)
		return dx
	}
	return dy
}

// finishBackward turns the gradient dy of the output into the gradient of p, and returns the gradient of y.
func (b *AltUp) finishBackward(p *Pass, streams, y, dy *Tensor) *Tensor {
	innovation, e, m := b.missed(p, y, streams)
	b.gateBackward(p, streams, innovation, e, dy)
	d, part, de := p.Get(b.dim()), p.Get(b.dim()), p.Stat(b.Streams)
	for i := range b.Streams {
		to, from := part, b.stream(p, 0, dy, i)
		if i == 0 {
			to = d
		}
		p.Do(func() error {
			return fused.AddRowsBackward(to.View, de.View, from.View, innovation.View, e.View, pairs(&b.singles, p.rows, b.Streams, i), b.Streams, b.dim())
		})
		if i > 0 {
			p.add(d, part)
		}
	}
	p.Put(innovation, e, part)
	p.take(b.stream(p, 0, dy, b.Active), d)
	dm := b.smallBackward(p, &b.Correct, m, de)
	b.hearBackward(p, m, dm, y, d)
	p.Put(dm)
	m.free(p)
	return d
}

// smallBackward adds the gradient of a small matrix on m, and returns the gradient of m. It frees de.
func (b *AltUp) smallBackward(p *Pass, l *Linear, m heard, de *Tensor) *Tensor {
	low, dm := p.Get(l.Out), p.Get(b.Streams)
	p.Do(func() error { return amp.Cast(low.View, de.View) })
	l.weightGradients(p, m.m, low)
	l.inputGradient(p, dm, low, 0)
	p.Done(l.Weight)
	p.Put(low, de)
	return dm
}

// gateBackward adds to dy what comes through the gate, to the active stream.
func (b *AltUp) gateBackward(p *Pass, streams, innovation, e, dy *Tensor) {
	l := b.PerLayer
	d := p.Get(b.dim())
	p.copyTo(d, b.stream(p, 0, dy, 1))
	for i := 2; i < b.Streams; i++ {
		p.add(d, b.stream(p, 0, dy, i))
	}
	active, own := p.Get(b.dim()), p.Get(b.dim())
	p.copyTo(active, b.stream(p, 0, streams, b.Active))
	b.correct(p, active, innovation, e, b.Active)
	p.copyTo(own, active)
	b.scale(p, own, nil)
	gate, up, act := p.Get(l.n()), l.embed(p), p.Get(l.n())
	l.Gate[0].compute(p, gate, own, 0)
	l.Activation.compute(p, act, gate, up, nil)
	out, post, s := p.Get(b.dim()), p.Get(b.dim()), l.Post.NewStats(p, 1)
	l.Out[0].compute(p, out, act, 0)
	l.Post.Compute(p, post, s, out)
	l.Post.Gradients(p, d, d, s, out, 0)
	p.Put(out, post, s.mean, s.rstd)
	dact := linearBackward(p, act, l.Out, d)
	p.Put(d)
	l.Activation.gradients(p, dact, gate, up, nil)
	p.Put(dact)
	l.embedBackward(p, up)
	p.Put(up)
	dx := linearBackward(p, own, l.Gate, gate)
	p.Put(gate)
	b.scale(p, dx, active)
	p.add(b.stream(p, 0, dy, b.Active), dx)
	p.Put(dx, active)
}

// enterBackward adds to dy, the gradient of p, what comes through attention, the Laurel and their norm, for the gradient d of their sum.
func (b *AltUp) enterBackward(p *Pass, s *altUpSaved, streams, n, left, right, d, dy *Tensor, ns, ls Stats) {
	active := b.stream(p, 3, dy, b.Active)
	p.add(active, d)
	dn, dl, in := p.Get(b.dim()), p.Get(b.dim()), p.Get(b.dim())
	p.copyTo(dn, d)
	b.LaurelPost.Gradients(p, dl, d, ls, right, 0)
	p.Put(right)
	dleft := linearBackward(p, left, b.Laurel[1:], dl)
	p.Put(dl)
	p.copyTo(in, n)
	dx := linearBackward(p, in, b.Laurel[:1], dleft)
	p.Put(dleft)
	p.add(dn, dx)
	p.Put(dx)
	b.Attention.backward(p, n, &s.attention, d, dn, 1)
	p.Put(n)
	b.Norm.Gradients(p, active, dn, ns, b.stream(p, 0, streams, b.Active), 1)
	p.Put(dn)
}

// predictBackward returns the gradient of streams h from the gradient d of p, which it frees.
func (b *AltUp) predictBackward(p *Pass, h, c *Tensor, m heard, d *Tensor) *Tensor {
	n := b.Streams
	dh, part, dc := p.Get(n*b.dim()), p.Get(b.dim()), p.Stat(n*n)
	p.copyTo(dh, d)
	for k := range n * n {
		from, x := b.stream(p, 0, d, k/n), b.stream(p, 1, h, k%n)
		p.Do(func() error {
			return fused.AddRowsBackward(part.View, dc.View, from.View, x.View, c.View, pairs(&b.squares, p.rows, n*n, k), n*n, b.dim())
		})
		p.add(b.stream(p, 2, dh, k%n), part)
	}
	p.Put(d, part)
	dm := b.smallBackward(p, &b.Predict, m, dc)
	b.hearBackward(p, m, dm, b.stream(p, 0, h, b.Active), b.stream(p, 1, dh, b.Active))
	p.Put(dm)
	return dh
}
