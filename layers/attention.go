package layers

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Attention is y = x + post(out(attention(rope(norm(q·h)), rope(norm(k·h)), norm(v·h)))) for h = norm(x). Zero norms are the
// identity, and without a Rope q and k are not rotated. Queries of Heads heads share the keys and values of KVHeads heads.
// With a Source it is cross-attention: keys and values are of the source, and all queries see all rows of their sequence.
// It keeps q, k, v, the output of attention and a number for each row and head; the backward step computes the norm again.
type Attention struct {
	Norm     Norm
	QKV, Out []Linear // QKV: three layers, or one for q, k and v side by side, or two, whose k is v too; Out: one
	// Interleaved says that the outputs of one QKV are q, k and v of a head, and then those of the next, as in GPT-NeoX. They are
	// copied apart, and so are their gradients: head by head on devices other than the CPU, too, where that is slow.
	Interleaved bool
	// Gated says that the outputs of the first of two or three QKV are the q of a head and as many elements of a gate, and then those of the next
	// head. The output of attention, before Out, is multiplied by the sigmoid of the gate, as in Qwen3-Next: see [fused.GLU]. The gate is
	// kept too. It runs on the CPU. Query keeps the gate until Leave.
	Gated                   bool
	QNorm, KNorm            Norm       // of heads, or of all heads of a row together
	NormLast                bool       // QNorm and KNorm follow the rope; without VNorm, Keeps and Reads
	VNorm                   Norm       // of heads of values, beside QNorm and KNorm
	Post                    Norm       // of the output
	Sinks                   *Param     // of Heads elements, see [attention.Sinks]; nil for none
	Rope                    *Angles    // nil for none
	Keeps, Reads            *KeyValues // of later layers that read its keys and values; of an earlier one whose it reads, with q alone in QKV
	Source                  *Source    // of cross-attention; nil: the rows themselves
	Heads, KVHeads, HeadDim int
	Scale                   float64 // factor of q·k
	Softcap                 float64 // see [attention.Options]
	Window                  int     // keys that a query sees; 0 for all
	Bidirectional           bool    // a query sees later keys too
	Parts                   bool    // a query sees the rows of its part alone, see [Batch.Parts]; wants Bidirectional
	// Plain computes attention without tiles, with all scores of a head in memory, and keeps the probabilities, so that a
	// program can measure what tiles save. It works on the CPU, without Softcap, and not with Bidirectional.
	Plain bool

	gate *Tensor // of Query, until Leave
}

// NewAttention returns a causal Attention with an RMSNorm, without rope and biases. Its parameters are name.norm, name.q, name.k,
// name.v and name.out, each with .weight; name.out begins as 0. width is a multiple of heads, and heads of kvHeads.
func NewAttention(name string, width, heads, kvHeads int) *Attention {
	dim := width / max(1, heads)
	if dim*heads != width {
		dim = 0 // which Width refuses
	}
	a := &Attention{
		Norm: *NewRMSNorm(name+".norm", width), Heads: heads, KVHeads: kvHeads, HeadDim: dim, Scale: 1 / math.Sqrt(float64(max(1, dim))),
		Out: []Linear{*newLast(name+".out", heads*dim, width)},
	}
	for _, l := range []struct {
		name  string
		heads int
	}{{".q", heads}, {".k", kvHeads}, {".v", kvHeads}} {
		a.QKV = append(a.QKV, *NewLinear(name+l.name, width, l.heads*dim, false))
	}
	return a
}

// Width implements [Layer].
func (b *Attention) Width(in int) (int, error) {
	switch {
	case b == nil || len(b.QKV) < 1 || len(b.QKV) > 3 || len(b.Out) != 1:
		return 0, fmt.Errorf("layers: an Attention without QKV or Out: %w", snug.ErrConfig)
	case b.Heads < 1 || b.KVHeads < 1 || b.HeadDim < 1 || b.Heads%b.KVHeads != 0:
		return 0, fmt.Errorf("layers: an Attention of %d heads and %d of keys, of %d elements: want heads that divide the width, and a multiple of those of keys: %w", b.Heads, b.KVHeads, b.HeadDim, snug.ErrConfig)
	case b.Plain && (b.Bidirectional || b.Softcap != 0):
		return 0, fmt.Errorf("layers: a Plain Attention goes without Bidirectional and Softcap: %w", snug.ErrConfig)
	case b.Interleaved && (len(b.QKV) != 1 || b.Heads != b.KVHeads || b.Source != nil):
		return 0, fmt.Errorf("layers: an Interleaved Attention has one QKV, as many heads of keys as of queries, and no Source: %w", snug.ErrConfig)
	case b.Gated && (len(b.QKV) == 1 || b.Source != nil):
		return 0, fmt.Errorf("layers: a Gated Attention has two or three QKV, and no Source: %w", snug.ErrConfig)
	case b.packed() && !b.QNorm.none():
		return 0, fmt.Errorf("layers: an Attention with one QKV goes without norms of heads: %w", snug.ErrConfig)
	case b.NormLast && (b.QNorm.none() || !b.VNorm.none() || b.Keeps != nil || b.Reads != nil):
		return 0, fmt.Errorf("layers: an Attention with NormLast wants norms of q and k, and goes without VNorm, Keeps and Reads: %w", snug.ErrConfig)
	case b.QNorm.none() && !b.VNorm.none(), len(b.QKV) == 2 && b.VNorm.none():
		return 0, fmt.Errorf("layers: an Attention with a VNorm wants a QNorm, and one whose keys are its values a VNorm: %w", snug.ErrConfig)
	case b.Parts && (!b.Bidirectional || b.Source != nil):
		return 0, fmt.Errorf("layers: an Attention with Parts is Bidirectional, and without a Source: %w", snug.ErrConfig)
	case b.Reads != nil && (len(b.QKV) != 1 || b.Keeps != nil || b.Source != nil || !b.KNorm.none() || !b.VNorm.none()), b.Keeps != nil && (b.packed() || b.Source != nil):
		return 0, fmt.Errorf("layers: an Attention with Reads has q alone, and one with Reads or Keeps no Source: %w", snug.ErrConfig)
	case b.QNorm.none() && !b.KNorm.none():
		return 0, fmt.Errorf("layers: an Attention with a KNorm wants a QNorm: %w", snug.ErrConfig)
	case b.Rope != nil && b.Rope.Rope().Dim > b.HeadDim:
		return 0, fmt.Errorf("layers: an Attention with heads of %d elements has a Rope that turns %d: %w", b.HeadDim, b.Rope.Rope().Dim, snug.ErrConfig)
	}
	if b.Rope != nil && b.Rope.Rope().QueryScale != 0 && (b.packed() || b.Rope.Rope().Dim != b.HeadDim) {
		return 0, fmt.Errorf("layers: an Attention whose Rope has a QueryScale wants three QKV, and turns all %d elements of a head: %w", b.HeadDim, snug.ErrConfig)
	}
	if b.Rope != nil && b.Rope.partial(b.HeadDim) {
		return 0, fmt.Errorf("layers: an Attention with heads of %d elements, of which %d turn by a rope with a factor: want Scaled Angles: %w", b.HeadDim, b.Rope.Rope().Dim, snug.ErrConfig)
	}
	want := [...]int{b.queries(), b.keys(), b.keys()}
	if b.packed() || b.Interleaved {
		want[0] += 2 * b.keys()
	}
	if b.Gated {
		want[0] *= 2
	}
	for i := range b.QKV {
		if b.QKV[i].Out != want[i] {
			return 0, fmt.Errorf("layers: QKV %d of an Attention has %d outputs, want %d: %w", i, b.QKV[i].Out, want[i], snug.ErrConfig)
		}
	}
	if b.Source == nil {
		return in, blockWidth(in, b.Norm, b.Post, b.QKV, b.Out[0], b.queries())
	}
	if len(b.QKV) != 3 || b.Rope != nil || !b.QNorm.none() || b.Window != 0 || b.Plain {
		return 0, fmt.Errorf("layers: a Source goes with three QKV, and without Rope, norms of heads, Window and Plain: %w", snug.ErrConfig)
	}
	if err := b.Source.check(b.QKV[1:]); err != nil {
		return 0, err
	}
	return in, blockWidth(in, b.Norm, b.Post, b.QKV[:1], b.Out[0], b.queries())
}

type attentionSaved struct {
	blockSaved
	q, k, v  *Tensor // before their norms, if they have norms, or after the rope; no v where k is v too
	att, lse *Tensor
	gate     *Tensor
}

// Tensors implements [Saved].
func (s *attentionSaved) Tensors(list []*Tensor) []*Tensor {
	return append(s.blockSaved.Tensors(list), s.q, s.k, s.v, s.att, s.lse, s.gate)
}

func (b *Attention) queries() int { return b.Heads * b.HeadDim }
func (b *Attention) keys() int    { return b.KVHeads * b.HeadDim }
func (b *Attention) dim() int     { return b.Out[0].Out }

// frees reports whether the backward step frees what it keeps as soon as it can. Where queries are as wide as the
// output, gradients take that memory.
func (b *Attention) frees() bool { return b.queries() == b.dim() }

// packed reports whether q, k and v are one tensor.
func (b *Attention) packed() bool { return len(b.QKV) == 1 && b.Reads == nil && !b.Interleaved }

// project computes q, k and v from the normalized input, and the gate if there is one.
func (b *Attention) project(p *Pass, s Stats, x *Tensor) (q, k, v, gate *Tensor) {
	h := p.Get(b.dim())
	if b.Interleaved {
		b.Norm.Compute(p, h, s, x)
		all := p.Get(b.QKV[0].Out)
		b.QKV[0].compute(p, all, h, 0)
		p.Put(h)
		q, k, v = b.makeQKV(p, 3)
		b.interleave(p, all, q, k, v, false)
		p.Put(all)
		return q, k, v, nil
	}
	q, k, v = b.makeQKV(p, len(b.QKV))
	b.Norm.Compute(p, h, s, x)
	var both *Tensor // q and the gate
	if b.Gated {
		both = p.Get(b.QKV[0].Out)
		b.QKV[0].compute(p, both, h, 0)
	}
	for i, y := range [...]*Tensor{q, k, v} {
		switch {
		case i == 0 && b.Gated:
		case y == nil:
		case i > 0 && b.Source != nil:
			b.onSource(p, func() { b.QKV[i].compute(p, y, b.Source.X, 0) })
		default:
			b.QKV[i].compute(p, y, h, 0)
		}
	}
	p.Put(h)
	if b.Gated {
		gate = p.Get(b.queries())
		b.copyGate(p, both, q, gate, false)
		p.Put(both)
	}
	if b.NormLast { // what the norms take, and their backward step, has turned
		b.rotate(p, q, k, fused.Rotary)
	}
	return q, k, v, gate
}

// copyGate copies q and the gate of all heads out of rows of both, or into them.
func (b *Attention) copyGate(p *Pass, both, q, gate *Tensor, into bool) {
	n := b.HeadDim
	p.Do(func() error {
		for i, t := range [...]*Tensor{q, gate} {
			all := part(both.View, i*n, both.Len()-i*n)
			wide, narrow := fused.Heads{Row: 2 * b.queries(), Head: 2 * n}, fused.Heads{Row: b.queries(), Head: n}
			var err error
			if into {
				err = fused.CopyHeads(all, t.View, wide, narrow, p.rows, b.Heads, n)
			} else {
				err = fused.CopyHeads(t.View, all, narrow, wide, p.rows, b.Heads, n)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// open returns the output of attention times its gate, which the caller frees, or without a gate the output itself.
func (b *Attention) open(p *Pass, s *attentionSaved) *Tensor {
	if !b.Gated {
		return s.att
	}
	y := p.Get(b.queries())
	p.Do(func() error { return fused.GLU(y.View, s.gate.View, s.att.View) })
	return y
}

// interleave copies the q, k and v of all heads out of the rows of all, or into them.
func (b *Attention) interleave(p *Pass, all, q, k, v *Tensor, into bool) {
	n := b.HeadDim
	p.Do(func() error {
		for i, t := range [...]*Tensor{q, k, v} {
			for at := range p.rows * b.Heads {
				to, from := part(t.View, at*n, n), part(all.View, (3*at+i)*n, n)
				if into {
					to, from = from, to
				}
				if err := snug.Copy(to, from); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// makeQKV makes tensors for q, k and v, or the first ones, or one for all three side by side.
func (b *Attention) makeQKV(p *Pass, count int) (q, k, v *Tensor) {
	if b.packed() {
		return p.Get(b.queries() + 2*b.keys()), nil, nil
	}
	q = p.Get(b.queries())
	b.onSource(p, func() {
		if count > 1 {
			k = p.Get(b.keys())
		}
		if count > 2 {
			v = p.Get(b.keys())
		}
	})
	return q, k, v
}

// ready applies the rope to q and k. If they have norms, it first normalizes them, and v if that has a norm, into
// new tensors, which drop frees, and writes the statistics to qs, ks and vs.
func (b *Attention) ready(p *Pass, qs, ks, vs Stats, q, k, v *Tensor) (*Tensor, *Tensor, *Tensor) {
	if b.Reads != nil {
		if !b.QNorm.none() {
			from := q
			q = p.Get(b.queries())
			b.QNorm.Compute(p, q, qs, from)
		}
		b.rotate(p, q, nil, fused.Rotary)
		k, v = b.Reads.read(p, b.keys())
		return q, k, v
	}
	if !b.QNorm.none() {
		from, fromK := q, k
		q, k = p.Get(b.queries()), p.Get(b.keys())
		b.QNorm.Compute(p, q, qs, from)
		b.KNorm.Compute(p, k, ks, fromK)
		if !b.VNorm.none() {
			fromV := b.rawValues(fromK, v)
			v = p.Get(b.keys())
			b.VNorm.Compute(p, v, vs, fromV)
		}
	}
	if !b.NormLast {
		b.rotate(p, q, k, fused.Rotary)
	}
	return q, k, v
}

// rawValues returns what the norm of values takes: v, or k where that is v too.
func (b *Attention) rawValues(k, v *Tensor) *Tensor {
	if len(b.QKV) == 2 {
		return k
	}
	return v
}

// drop frees what ready made.
func (b *Attention) drop(p *Pass, q, k, v *Tensor) {
	if !b.QNorm.none() {
		p.Put(q, k)
	}
	if !b.VNorm.none() {
		p.Put(v)
	}
}

// Query computes q, k and v of the rows of x as attention takes them; k and v are nil if they lie in q, and with Reads. The caller
// frees them.
func (b *Attention) Query(p *Pass, x *Tensor) (q, k, v *Tensor) {
	if p.refuses(b, x) {
		return &Tensor{}, nil, nil
	}
	q, k, v, b.gate = b.project(p, Stats{}, x)
	if b.Reads != nil {
		b.QNorm.Compute(p, q, Stats{}, q)
	} else if !b.QNorm.none() {
		if !b.VNorm.none() {
			from := b.rawValues(k, v)
			if v == nil {
				v = p.Get(b.keys())
			}
			b.VNorm.Compute(p, v, Stats{}, from)
		}
		b.QNorm.Compute(p, q, Stats{}, q)
		b.KNorm.Compute(p, k, Stats{}, k)
	}
	if !b.NormLast {
		b.rotate(p, q, k, fused.Rotary)
	}
	return q, k, v
}

// Leave returns the output for x and the output of attention, which it frees.
func (b *Attention) Leave(p *Pass, x, att *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	if gate := b.gate; gate != nil {
		p.Do(func() error { return fused.GLU(att.View, gate.View, att.View) })
		p.Put(gate)
		b.gate = nil
	}
	y := p.Get(b.dim())
	leave(p, y, x, att, &b.Out[0], b.Post, nil)
	p.Put(att)
	return y
}

// Forward implements [Layer].
func (b *Attention) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	q, k, v := b.Query(p, x)
	b.Keeps.keep(p, k, v)
	if b.Reads != nil {
		k, v = b.Reads.read(p, b.keys())
	}
	att := p.Get(b.queries())
	b.attend(p, att, nil, q, k, v)
	p.Put(q, k, v)
	return b.Leave(p, x, att)
}

// save returns the saved set, whose output has its values if whole says so, or the norm after it needs it.
func (b *Attention) save(p *Pass, x *Tensor, whole bool) *attentionSaved {
	if p.refuses(b, x) {
		return &attentionSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}
	}
	s := newSaved[attentionSaved](p)
	b.saveInto(p, s, x, x, whole)
	return s
}

// saveInto is save for a set, where the attention of from is added to x.
func (b *Attention) saveInto(p *Pass, s *attentionSaved, x, from *Tensor, whole bool) {
	s.y, s.norm = p.Get(b.dim()), b.Norm.NewStats(p, 1)
	s.keepPost(p, b.Post, b.dim())
	s.att, s.lse = p.Get(b.queries()), b.keepScores(p)
	s.q, s.k, s.v, s.gate = b.project(p, s.norm, from)
	q, k, v := b.ready(p, Stats{}, Stats{}, Stats{}, s.q, s.k, s.v)
	b.Keeps.keep(p, k, v)
	b.attend(p, s.att, s.lse, q, k, v)
	b.drop(p, q, k, v)
	if whole || !b.Post.none() {
		att := b.open(p, s)
		leave(p, s.y, x, att, &b.Out[0], b.Post, &s.blockSaved)
		b.shut(p, s, att)
	}
}

// shut frees what open made.
func (b *Attention) shut(p *Pass, s *attentionSaved, att *Tensor) {
	if att != s.att {
		p.Put(att)
	}
}

// ForwardSave implements [Layer].
func (b *Attention) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.save(p, x, true)
	return s.y, s
}

// Resave implements [Resaver]. It leaves out the last product, unless its norm needs it.
func (b *Attention) Resave(p *Pass, x *Tensor) Saved { return b.save(p, x, false) }

// Params implements [Layer].
func (b *Attention) Params(yield func(*Param) bool) {
	yieldAll(yield, b.Norm.list(), listOf(b.QKV), b.QNorm.list(), b.KNorm.list(), []*Param{b.Sinks}, listOf(b.Out), b.Post.list())
}
