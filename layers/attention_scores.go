package layers

import (
	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
)

// options returns the options of package attention for the batch.
func (b *Attention) options(p *Pass) attention.Options {
	scale, window := b.Scale, b.Window
	if b.Rope != nil {
		// The factor a of a rope multiplies its sines and cosines, and so both q and k; it enters here as a², because the
		// angles that fused.Rotary takes are plain rotations, unless they are Scaled, where it is 1. Gradients of q and k are then right too.
		scale *= b.Rope.attention * b.Rope.attention
	}
	if window >= p.Batch.Longest {
		window = 0
	}
	o := attention.Options{
		Batch: p.Batch.Sequences, Heads: b.Heads, KVHeads: b.KVHeads, SeqQ: p.Batch.Rows / p.Batch.Sequences, Dim: b.HeadDim,
		Causal: !b.Bidirectional, Window: attention.Window{Left: window}, Scale: float32(scale), Softcap: float32(b.Softcap),
	}
	if p.Batch.Starts != nil {
		o.SeqQ, o.QStarts = p.Batch.Rows, p.Batch.Starts
	}
	if b.Parts && p.Batch.Parts != nil {
		o.Batch, o.SeqQ, o.QStarts = len(p.Batch.Parts)-1, p.Batch.Rows, p.Batch.Parts
	}
	if s := b.Source; s != nil {
		o.Causal, o.SeqK, o.KStarts = false, s.rows(p.Batch)/p.Batch.Sequences, s.Starts
		if s.Starts != nil {
			o.SeqK = s.Rows
		}
	}
	if b.packed() {
		return attention.PackedQKV(o)
	}
	return attention.SequenceMajor(o)
}

// rotate turns the heads of q and k by their positions, or their gradients back. Without a k the rows of q have both side by side, or
// with Reads q alone.
func (b *Attention) rotate(p *Pass, q, k *Tensor, turn func(x, angles snug.View, positions []int32, c fused.RotaryOptions) error) {
	if b.Rope == nil {
		return
	}
	p.Do(func() error {
		angles, positions, err := b.Rope.of(p)
		if err != nil {
			return err
		}
		r := b.Rope.Rope()
		c := fused.RotaryOptions{Heads: b.Heads, Dim: b.HeadDim, Turned: r.Dim, Interleaved: r.Interleaved}
		if b.packed() {
			c.Heads, c.Stride = b.Heads+b.KVHeads, b.queries()+2*b.keys()
			return turn(q.View, angles, positions, c)
		}
		if err := turn(q.View, b.Rope.ofQueries(angles), positions, c); err != nil {
			return err
		}
		if k == nil {
			return nil
		}
		c.Heads = b.KVHeads
		return turn(k.View, angles, positions, c)
	})
}

// keepScores returns what attend keeps for the backward pass: a number for each row and head, or all probabilities.
func (b *Attention) keepScores(p *Pass) *Tensor {
	if b.Plain {
		return p.Get(b.Heads * (p.Batch.Longest + b.sinkColumns()))
	}
	return p.Stat(b.Heads)
}

// Options returns the options of package attention for the batch and layer: those of [Attention.Query]'s results. For a batch with
// Spans it makes their mask, unless another layer has.
func (b *Attention) Options(p *Pass) attention.Options {
	if b == nil || p == nil || p.Batch.Sequences < 1 {
		return attention.Options{}
	}
	c := b.options(p)
	b.sinks(p, &c)
	p.Do(func() error { return b.seeSpans(p, &c) })
	return c
}

// attend computes out = attention(q, k, v) and writes to lse, unless it is nil, what attendBackward needs. If k and v
// are nil, the rows of q have q, k and v side by side.
func (b *Attention) attend(p *Pass, out, lse, q, k, v *Tensor) {
	c := b.Options(p)
	p.macs += float64(p.rows) * float64(p.Batch.Longest) * float64(b.queries())
	p.Do(func() error {
		if err := b.Source.fits(p.Batch); err != nil {
			return err
		}
		if b.Plain {
			return b.plainForward(p, out, lse, q, k, v, c)
		}
		q, k, v := b.split(q, k, v)
		return attention.Forward(out.View, viewOf(lse), q, k, v, c)
	})
}

// split returns the vectors of q, k and v. Those of packed rows all lie in q.
func (b *Attention) split(q, k, v *Tensor) (snug.View, snug.View, snug.View) {
	if k != nil {
		return q.View, k.View, v.View
	}
	queries, keys, n := b.queries(), b.keys(), q.Len()
	return q.View, part(q.View, queries, n-queries), part(q.View, queries+keys, n-queries-keys)
}
