package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
)

// Parallel is y = x + attention(h) + mlp(h) for h = norm(x), where attention and mlp are what an [Attention] and an [MLP] add to their
// input: both halves of a layer read the same rows (Wang and Komatsuzaki 2021, "GPT-J-6B"), as in GPT-NeoX, Phi and Cohere. In place of the MLP
// it has a [Mamba2] in Falcon-H1, on the CPU. Where the
// Norm is zero the halves have norms of their own, as in GPT-NeoX. It keeps what they keep, but for one output; the backward step
// computes the norm again. [Options.Tiles] does not hold for its MLP.
type Parallel struct {
	Norm      Norm // of both halves; zero: none
	Attention *Attention
	MLP       *MLP
	Mamba     *Mamba2 // in place of the MLP, which is then nil
}

func (b *Parallel) inside() []Layer { return []Layer{b.Attention, b.second()} }

// second returns the half beside attention.
func (b *Parallel) second() Layer {
	if b.Mamba != nil {
		return b.Mamba
	}
	return b.MLP
}

// Width implements [Layer].
func (b *Parallel) Width(in int) (int, error) {
	if b == nil || b.Attention == nil || (b.MLP == nil) == (b.Mamba == nil) {
		return 0, fmt.Errorf("layers: a Parallel without Attention, or without one of MLP and Mamba: %w", snug.ErrConfig)
	}
	second := Norm{}
	if b.Mamba != nil {
		second = b.Mamba.Post
	} else {
		second = b.MLP.Post
	}
	if !b.Attention.Post.none() || !second.none() {
		return 0, fmt.Errorf("layers: a Parallel goes without norms after its halves: %w", snug.ErrConfig)
	}
	if _, err := b.Norm.Width(in); err != nil { // called as it is, a Norm in a Layer would be allocated
		return 0, err
	}
	if _, err := b.Attention.Width(in); err != nil {
		return 0, err
	}
	_, err := b.second().Width(in)
	return in, err
}

// parallelSaved is what a Parallel keeps. The output is in the set of attention.
type parallelSaved struct {
	norm      Stats
	attention attentionSaved
	mlp       mlpSaved
	mamba     mamba2Saved
}

// Tensors implements [Saved].
func (s *parallelSaved) Tensors(list []*Tensor) []*Tensor {
	return append(s.mamba.Tensors(s.mlp.Tensors(s.attention.Tensors(list))), s.norm.mean, s.norm.rstd)
}

// normed returns the input of the halves: x itself without a norm.
func (b *Parallel) normed(p *Pass, s Stats, x *Tensor) *Tensor {
	if b.Norm.none() {
		return x
	}
	h := p.Get(p.width(x))
	b.Norm.Compute(p, h, s, x)
	return h
}

// drop frees what normed made for x.
func (b *Parallel) drop(p *Pass, h, x *Tensor) {
	if h != x {
		p.Put(h)
	}
}

// Query is [Attention.Query].
func (b *Parallel) Query(p *Pass, x *Tensor) (q, k, v *Tensor) {
	if p.refuses(b, x) {
		return &Tensor{}, nil, nil
	}
	h := b.normed(p, Stats{}, x)
	q, k, v = b.Attention.Query(p, h)
	b.drop(p, h, x)
	return q, k, v
}

// Options is [Attention.Options].
func (b *Parallel) Options(p *Pass) attention.Options {
	if b == nil {
		return attention.Options{}
	}
	return b.Attention.Options(p)
}

// Leave is [Attention.Leave], and adds what the other half makes of x.
func (b *Parallel) Leave(p *Pass, x, att *Tensor) *Tensor { return b.LeaveFrom(p, x, att, nil) }

// LeaveFrom is Leave where a Mamba2 goes on from states, see [Mamba2.Continue].
func (b *Parallel) LeaveFrom(p *Pass, x, att *Tensor, states []snug.View) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	y := b.Attention.Leave(p, x, att)
	h := b.normed(p, Stats{}, x)
	switch {
	case b.Mamba != nil && states != nil:
		b.Mamba.proceed(p, y, y, h, states)
	default:
		b.addSecond(p, y, h)
	}
	b.drop(p, h, x)
	return y
}

// addSecond adds to y what the half beside attention makes of h.
func (b *Parallel) addSecond(p *Pass, y, h *Tensor) {
	if b.Mamba != nil {
		b.Mamba.forward(p, y, y, h)
	} else {
		b.MLP.forward(p, y, y, h)
	}
}

// Forward implements [Layer].
func (b *Parallel) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	h, a := b.normed(p, Stats{}, x), b.Attention
	q, k, v := a.Query(p, h)
	att := p.Get(a.queries())
	a.attend(p, att, nil, q, k, v)
	p.Put(q, k, v)
	y := a.Leave(p, x, att)
	b.addSecond(p, y, h)
	b.drop(p, h, x)
	return y
}

// save returns the saved set, whose output has its values if whole says so.
func (b *Parallel) save(p *Pass, x *Tensor, whole bool) *parallelSaved {
	if p.refuses(b, x) {
		return &parallelSaved{attention: attentionSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}}
	}
	s := newSaved[parallelSaved](p)
	s.norm = b.Norm.NewStats(p, 1)
	h := b.normed(p, s.norm, x)
	b.Attention.saveInto(p, &s.attention, x, h, whole)
	if b.Mamba != nil {
		s.mamba.y = s.attention.y
		b.Mamba.save(p, &s.mamba, s.attention.y, h, whole)
		s.mamba.y = nil
	} else {
		s.mlp.y = s.attention.y
		b.MLP.save(p, &s.mlp, s.attention.y, h, whole)
		s.mlp.y = nil
	}
	b.drop(p, h, x)
	return s
}

// ForwardSave implements [Layer].
func (b *Parallel) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.save(p, x, true)
	return s.attention.y, s
}

// Resave implements [Resaver]. It leaves out the activation and the last products.
func (b *Parallel) Resave(p *Pass, x *Tensor) Saved { return b.save(p, x, false) }

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *Parallel) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	s := kept.(*parallelSaved)
	h, sum := b.normed(p, Stats{}, x), p.Get(p.width(x))
	if b.Mamba != nil {
		b.Mamba.backward(p, h, &s.mamba, dy, sum, 0)
	} else {
		b.MLP.backward(p, h, &s.mlp, dy, sum, 0)
	}
	b.Attention.backward(p, h, &s.attention, dy, sum, 1)
	b.drop(p, h, x)
	if b.Norm.none() {
		p.Do(func() error { return fused.Add(dy.View, dy.View, sum.View) })
	} else {
		b.Norm.Gradients(p, dy, sum, s.norm, x, 1)
	}
	p.Put(sum)
	return dy
}

// Params implements [Layer].
func (b *Parallel) Params(yield func(*Param) bool) {
	if b == nil || b.Attention == nil || b.MLP == nil && b.Mamba == nil {
		return
	}
	more := true
	each := func(p *Param) bool { more = more && yield(p); return more }
	for _, l := range [...]Layer{b.Norm, b.Attention, b.second()} {
		l.Params(each)
	}
}
