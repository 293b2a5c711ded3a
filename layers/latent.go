package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
)

// Latent is multi-head latent attention (DeepSeek-AI 2024, arXiv:2405.04434): y = x + out(attention(q, k, v)), where keys and values of
// all heads are made of few numbers a row. With h = norm(x), the row c of Rank numbers and the row r of RopeDim, which all heads share,
//
//	[c, r] = down(h)    [k', v] = up(kvnorm(c))    k = [k', rope(r)]    q = qup(qnorm(qdown(h))), or q(h)
//
// A head of q and of k has KeyDim elements that do not turn, and then RopeDim that do; one of v has ValueDim. A Rope
// with a QueryScale, whose Angles have their Factors apart, multiplies all elements of q. It runs on the CPU.
// It keeps q, k', v, the output of attention, [c, r], the output of qdown, and a number for each row and head; the backward step computes
// the norms again, and puts the keys together again.
type Latent struct {
	Norm Norm
	// In has two layers: to QNorm's width, or without QUp to q; and to c and r, side by side.
	In     []Linear
	QNorm  Norm     // between In[0] and QUp
	QUp    []Linear // one, or none
	KVNorm Norm     // of c
	Up     []Linear // one: to k' and v of each head, side by side
	Out    []Linear // one
	Post   Norm     // of the output
	Rope   *Angles  // nil for none; Scaled, if it has a factor

	Heads, KeyDim, RopeDim, ValueDim int

	Scale float64 // factor of q·k
}

// Width implements [Layer].
func (b *Latent) Width(in int) (int, error) {
	switch {
	case b == nil || len(b.In) != 2 || len(b.QUp) > 1 || len(b.Up) != 1 || len(b.Out) != 1:
		return 0, fmt.Errorf("layers: a Latent without In, Up or Out: %w", snug.ErrConfig)
	case b.Heads < 1 || b.KeyDim < 1 || b.RopeDim < 1 || b.ValueDim < 1:
		return 0, fmt.Errorf("layers: a Latent of %d heads of %d and %d elements, values of %d: want 1 or more: %w", b.Heads, b.KeyDim, b.RopeDim, b.ValueDim, snug.ErrConfig)
	case b.Rope != nil && (b.Rope.Rope().Dim != b.RopeDim || b.Rope.partial(b.dim())):
		return 0, fmt.Errorf("layers: a Latent whose heads turn in %d elements has a Rope of %d, want as many, and Scaled Angles for one with a factor: %w", b.RopeDim, b.Rope.Rope().Dim, snug.ErrConfig)
	case b.Rope != nil && b.Rope.Rope().QueryScale != 0 && (!b.Rope.apart || b.queries()%2 != 0):
		return 0, fmt.Errorf("layers: a Latent of %d heads of %d elements whose Rope has a QueryScale wants Angles with Factors, and an even number of elements: %w", b.Heads, b.dim(), snug.ErrConfig)
	case len(b.QUp) == 0 && b.QNorm.Weight != nil:
		return 0, fmt.Errorf("layers: a Latent with a QNorm wants a QUp: %w", snug.ErrConfig)
	}
	queries := &b.In[0]
	if len(b.QUp) == 1 {
		queries = &b.QUp[0]
		if _, err := queries.Width(b.In[0].Out); err != nil {
			return 0, err
		}
		if err := widthOf("QNorm of a Latent", b.In[0].Out, b.QNorm.width(b.In[0].Out)); err != nil {
			return 0, err
		}
	}
	for _, w := range []struct {
		name      string
		has, want int
	}{
		{"queries of a Latent", queries.Out, b.queries()}, {"In 1 of a Latent", b.In[1].Out, b.rank() + b.RopeDim},
		{"KVNorm of a Latent", b.rank(), b.KVNorm.width(b.rank())}, {"Up of a Latent", b.Up[0].Out, b.Heads * (b.KeyDim + b.ValueDim)},
	} {
		if err := widthOf(w.name, w.has, w.want); err != nil {
			return 0, err
		}
	}
	if _, err := b.Up[0].Width(b.rank()); err != nil {
		return 0, err
	}
	return in, blockWidth(in, b.Norm, b.Post, b.In, b.Out[0], b.Heads*b.ValueDim)
}

// width returns the elements of a norm, or instead those of its input without one.
func (n Norm) width(in int) int {
	if n.Weight == nil {
		return in
	}
	return n.Weight.Len()
}

type latentSaved struct {
	blockSaved
	a, c     *Tensor // the outputs of In
	q, kv    *Tensor // q turned; k' and v
	att, lse *Tensor
}

// Tensors implements [Saved].
func (s *latentSaved) Tensors(list []*Tensor) []*Tensor {
	return append(s.blockSaved.Tensors(list), s.a, s.c, s.q, s.kv, s.att, s.lse)
}

func (b *Latent) rank() int    { return b.Up[0].In }
func (b *Latent) dim() int     { return b.KeyDim + b.RopeDim }
func (b *Latent) queries() int { return b.Heads * b.dim() }

// pairs returns the width of k' and v of all heads.
func (b *Latent) pairs() int { return b.Heads * (b.KeyDim + b.ValueDim) }

// project computes the saved tensors before attention. a is nil without a QUp.
func (b *Latent) project(p *Pass, s Stats, x *Tensor) (a, c, q, kv *Tensor) {
	h := p.Get(b.Out[0].Out)
	first := p.Get(b.In[0].Out)
	c = p.Get(b.rank() + b.RopeDim)
	b.Norm.Compute(p, h, s, x)
	b.In[0].compute(p, first, h, 0)
	b.In[1].compute(p, c, h, 0)
	p.Put(h)
	q = first
	if len(b.QUp) == 1 {
		a, q = first, p.Get(b.queries())
		h = p.Get(b.In[0].Out)
		b.QNorm.Compute(p, h, Stats{}, a)
		b.QUp[0].compute(p, q, h, 0)
		p.Put(h)
	}
	b.turn(p, q, b.Heads, b.dim(), b.KeyDim, fused.Rotary)
	b.scale(p, q)
	h = b.latent(p, c, Stats{})
	kv = p.Get(b.pairs())
	b.Up[0].compute(p, kv, h, 0)
	p.Put(h)
	return a, c, q, kv
}

// latent returns kvnorm(c), which the caller frees, for c and r side by side.
func (b *Latent) latent(p *Pass, c *Tensor, s Stats) *Tensor {
	h := b.narrow(p, c)
	b.KVNorm.Compute(p, h, s, h)
	return h
}

// narrow returns c of [c, r].
func (b *Latent) narrow(p *Pass, c *Tensor) *Tensor {
	h := p.Get(b.rank())
	p.Do(func() error {
		return fused.CopyHeads(h.View, c.View, fused.Heads{Row: b.rank()}, fused.Heads{Row: b.rank() + b.RopeDim}, p.rows, 1, b.rank())
	})
	return h
}

// turn turns the last RopeDim elements of each head of rows, of which the first ones stay as they are, or their gradients back.
func (b *Latent) turn(p *Pass, x *Tensor, heads, dim, first int, turn func(x, angles snug.View, positions []int32, c fused.RotaryOptions) error) {
	if b.Rope == nil {
		return
	}
	p.Do(func() error {
		angles, positions, err := b.Rope.of(p)
		if err != nil {
			return err
		}
		at := func(head, heads, dim int) error {
			lo := head*b.dim() + first
			return turn(part(x.View, lo, x.Len()-lo), angles, positions, fused.RotaryOptions{
				Heads: heads, Dim: dim, Turned: b.RopeDim, Stride: x.Len() / p.rows, Interleaved: b.Rope.Rope().Interleaved})
		}
		if heads > 1 { // the last one has fewer elements from there on
			if err := at(0, heads-1, dim); err != nil {
				return err
			}
		}
		return at(heads-1, 1, b.RopeDim)
	})
}

// scale multiplies the rows of q, or of its gradient, by the factors of their positions: pairs that turn by nothing.
func (b *Latent) scale(p *Pass, q *Tensor) {
	if b.Rope == nil {
		return
	}
	p.Do(func() error {
		_, positions, err := b.Rope.of(p)
		if err != nil || b.Rope.factors.v.Len() == 0 {
			return err
		}
		return fused.Rotary(q.View, b.Rope.factors.v, positions, fused.RotaryOptions{Heads: b.queries() / 2, Dim: 2, Turned: 2})
	})
}

// keys returns k of all heads, which the caller frees.
func (b *Latent) keys(p *Pass, c, kv *Tensor) *Tensor {
	r, k := p.Get(b.RopeDim), p.Get(b.queries())
	p.Do(func() error {
		wide := fused.Heads{Row: b.rank() + b.RopeDim}
		return fused.CopyHeads(r.View, part(c.View, b.rank(), c.Len()-b.rank()), fused.Heads{Row: b.RopeDim}, wide, p.rows, 1, b.RopeDim)
	})
	b.turn(p, r, 1, b.RopeDim, 0, fused.Rotary)
	p.Do(func() error {
		if err := fused.CopyHeads(k.View, kv.View, b.atKey(), b.atPair(), p.rows, b.Heads, b.KeyDim); err != nil {
			return err
		}
		return fused.CopyHeads(part(k.View, b.KeyDim, k.Len()-b.KeyDim), r.View, b.atKey(), fused.Heads{Row: b.RopeDim}, p.rows, b.Heads, b.RopeDim)
	})
	p.Put(r)
	return k
}

// atKey and atPair are the layouts of keys, and of k' and v.
func (b *Latent) atKey() fused.Heads { return fused.Heads{Row: b.queries(), Head: b.dim()} }
func (b *Latent) atPair() fused.Heads {
	return fused.Heads{Row: b.pairs(), Head: b.KeyDim + b.ValueDim}
}

// Options returns the options of package attention for the batch and layer: those of [Latent.Query]'s results.
func (b *Latent) Options(p *Pass) attention.Options {
	if b == nil || p == nil || p.Batch.Sequences < 1 {
		return attention.Options{}
	}
	o := attention.Options{
		Batch: p.Batch.Sequences, Heads: b.Heads, KVHeads: b.Heads, SeqQ: p.Batch.Rows / p.Batch.Sequences, Dim: b.dim(), DimV: b.ValueDim,
		Causal: true, Scale: float32(b.Scale),
	}
	if p.Batch.Starts != nil {
		o.SeqQ, o.QStarts = p.Batch.Rows, p.Batch.Starts
	}
	return attention.SequenceMajor(o)
}

// within returns Options for v that lies within k' and v.
func (b *Latent) within(p *Pass) attention.Options {
	o := b.Options(p)
	o.V = attention.Strides{Batch: o.SeqQ * b.pairs(), Head: b.KeyDim + b.ValueDim, Row: b.pairs()}
	return o
}

// values returns v within k' and v.
func (b *Latent) values(kv *Tensor) snug.View { return part(kv.View, b.KeyDim, kv.Len()-b.KeyDim) }

// attend computes out = attention(q, k, v).
func (b *Latent) attend(p *Pass, out, lse, q, c, kv *Tensor) {
	k := b.keys(p, c, kv)
	p.macs += b.scores(p)
	p.Do(func() error {
		return attention.Forward(out.View, viewOf(lse), q.View, k.View, b.values(kv), b.within(p))
	})
	p.Put(k)
}

// scores returns the multiply-adds of attention.
func (b *Latent) scores(p *Pass) float64 {
	return float64(p.rows) * float64(p.Batch.Longest) * float64(b.Heads*(b.dim()+b.ValueDim)) / 2
}

// Query computes q, k and v of the rows of x as attention takes them: heads of KeyDim+RopeDim elements, and of ValueDim. The caller
// frees them.
func (b *Latent) Query(p *Pass, x *Tensor) (q, k, v *Tensor) {
	if p.refuses(b, x) {
		return &Tensor{}, nil, nil
	}
	a, c, q, kv := b.project(p, Stats{}, x)
	p.Put(a)
	k, v = b.keys(p, c, kv), p.Get(b.Heads*b.ValueDim)
	p.Do(func() error {
		return fused.CopyHeads(v.View, b.values(kv), fused.Heads{Row: b.Heads * b.ValueDim, Head: b.ValueDim}, b.atPair(), p.rows, b.Heads, b.ValueDim)
	})
	p.Put(c, kv)
	return q, k, v
}

// Leave returns the output for x and the output of attention, which it frees.
func (b *Latent) Leave(p *Pass, x, att *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	y := p.Get(b.Out[0].Out)
	leave(p, y, x, att, &b.Out[0], b.Post, nil)
	p.Put(att)
	return y
}

// Forward implements [Layer].
func (b *Latent) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	a, c, q, kv := b.project(p, Stats{}, x)
	p.Put(a)
	att := p.Get(b.Heads * b.ValueDim)
	b.attend(p, att, nil, q, c, kv)
	p.Put(c, q, kv)
	return b.Leave(p, x, att)
}

// save returns the saved set, whose output has its values if whole says so, or the norm after it needs it.
func (b *Latent) save(p *Pass, x *Tensor, whole bool) *latentSaved {
	if p.refuses(b, x) {
		return &latentSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}
	}
	s := newSaved[latentSaved](p)
	s.y, s.norm = p.Get(b.Out[0].Out), b.Norm.NewStats(p, 1)
	s.keepPost(p, b.Post, b.Out[0].Out)
	s.att, s.lse = p.Get(b.Heads*b.ValueDim), p.Stat(b.Heads)
	s.a, s.c, s.q, s.kv = b.project(p, s.norm, x)
	b.attend(p, s.att, s.lse, s.q, s.c, s.kv)
	if whole || !b.Post.none() {
		leave(p, s.y, x, s.att, &b.Out[0], b.Post, &s.blockSaved)
	}
	return s
}

// ForwardSave implements [Layer].
func (b *Latent) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.save(p, x, true)
	return s.y, s
}

// Resave implements [Resaver]. It leaves out the last product, unless its norm needs it.
func (b *Latent) Resave(p *Pass, x *Tensor) Saved { return b.save(p, x, false) }

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *Latent) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	s := kept.(*latentSaved)
	datt := b.outBackward(p, s, dy)
	dq, dkv, dr := b.attendBackward(p, s, datt)
	p.Put(datt)
	dc := b.upBackward(p, s, dkv, dr)
	p.Put(dr)
	if len(b.QUp) == 1 {
		dq = b.queryBackward(p, s, dq)
	}
	h := p.Get(b.Out[0].Out)
	if anyTrains(b.In) {
		b.Norm.Compute(p, h, Stats{}, x)
	}
	dh := linearBackward(p, h, b.In, dq, dc)
	p.Put(dq, dc)
	b.Norm.Gradients(p, dy, dh, s.norm, x, 1)
	p.Put(dh)
	return dy
}

// outBackward returns the gradient of attention's output.
func (b *Latent) outBackward(p *Pass, s *latentSaved, d *Tensor) *Tensor {
	dout := leaveBackward(p, d, &b.Out[0], b.Post, &s.blockSaved)
	out := &b.Out[0]
	out.weightGradients(p, s.att, dout)
	datt := p.Get(b.Heads * b.ValueDim)
	out.inputGradients(p, datt, dout, s.att, inner(p, s.att, b.Out)[0], 0)
	p.Done(out.Weight, out.Bias)
	if dout != d {
		p.Put(dout)
	}
	return datt
}

// attendBackward returns the gradients of the queries before the rope, of k' and v, and of r.
func (b *Latent) attendBackward(p *Pass, s *latentSaved, datt *Tensor) (dq, dkv, dr *Tensor) {
	k := b.keys(p, s.c, s.kv)
	dq, dkv = p.Get(b.queries()), p.Get(b.pairs())
	dk := p.Get(b.queries())
	p.macs += 2.5 * b.scores(p)
	p.Do(func() error {
		ws, err := p.Workspace(b.Heads * p.Batch.Rows)
		if err != nil {
			return err
		}
		c := b.within(p)
		return attention.Backward(dq.View, dk.View, b.values(dkv), datt.View, s.q.View, k.View, b.values(s.kv), s.att.View, s.lse.View, c, ws)
	})
	p.Put(k)
	dr = p.Get(b.RopeDim)
	p.Do(func() error {
		if err := fused.CopyHeads(dkv.View, dk.View, b.atPair(), b.atKey(), p.rows, b.Heads, b.KeyDim); err != nil {
			return err
		}
		return fused.SumHeads(dr.View, part(dk.View, b.KeyDim, dk.Len()-b.KeyDim), fused.Heads{Row: b.RopeDim}, b.atKey(), p.rows, b.Heads, b.RopeDim)
	})
	p.Put(dk)
	b.turn(p, dr, 1, b.RopeDim, 0, fused.RotaryBackward)
	b.scale(p, dq)
	b.turn(p, dq, b.Heads, b.dim(), b.KeyDim, fused.RotaryBackward)
	return dq, dkv, dr
}

// upBackward returns the gradient of [c, r], and frees dkv.
func (b *Latent) upBackward(p *Pass, s *latentSaved, dkv, dr *Tensor) *Tensor {
	stats := b.KVNorm.NewStats(p, 1)
	narrow := b.narrow(p, s.c)
	h := p.Get(b.rank())
	b.KVNorm.Compute(p, h, stats, narrow)
	dh := linearBackward(p, h, b.Up, dkv)
	p.Put(dkv)
	b.KVNorm.Gradients(p, dh, dh, stats, narrow, 0)
	p.Put(narrow, stats.mean, stats.rstd)
	dc := p.Get(b.rank() + b.RopeDim)
	p.Do(func() error {
		wide := fused.Heads{Row: b.rank() + b.RopeDim}
		if err := fused.CopyHeads(dc.View, dh.View, wide, fused.Heads{Row: b.rank()}, p.rows, 1, b.rank()); err != nil {
			return err
		}
		return fused.CopyHeads(part(dc.View, b.rank(), dc.Len()-b.rank()), dr.View, wide, fused.Heads{Row: b.RopeDim}, p.rows, 1, b.RopeDim)
	})
	p.Put(dh)
	return dc
}

// queryBackward returns the gradient of the output of In[0] for that of QUp, which it frees.
func (b *Latent) queryBackward(p *Pass, s *latentSaved, dq *Tensor) *Tensor {
	stats := b.QNorm.NewStats(p, 1)
	h := p.Get(b.In[0].Out)
	b.QNorm.Compute(p, h, stats, s.a)
	dh := linearBackward(p, h, b.QUp, dq)
	p.Put(dq)
	b.QNorm.Gradients(p, dh, dh, stats, s.a, 0)
	p.Put(stats.mean, stats.rstd)
	return dh
}

// Params implements [Layer].
func (b *Latent) Params(yield func(*Param) bool) {
	yieldAll(yield, b.Norm.list(), listOf(b.In), b.QNorm.list(), listOf(b.QUp), b.KVNorm.list(), listOf(b.Up), listOf(b.Out), b.Post.list())
}
