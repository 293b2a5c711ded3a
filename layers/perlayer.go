package layers

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
)

// PerLayer puts an embedding of the layer's own behind a layer f, as in Gemma 4 E2B and E4B:
//
//	z = f(x)    y = z + post(out(act(gate·z)·e))    e = (norm(P·t) + √n·T[token])/√2
//
// t is the row of Table for the token, and n the elements of e; a token that T does not have is token 0 there. P and T are the parts of layer Index of matrices that Count layers share:
// rows of Projection [Count·n, width], and columns of Tokens [tokens, Count·n]. e is made again in each layer from the batch's tokens, so
// that nothing but x passes from a stage to the next, and its gradient goes to the shared parameters from each layer in turn.
// It keeps what f keeps, gate·z, e and the input of post.
type PerLayer struct {
	Layer              // f, whose output is as wide as its input
	Table              *Embedding
	Tokens, Projection *Param
	Norm               Norm // of n elements
	Gate, Out          []Linear
	Activation         Activation
	Post               Norm
	Index, Count       int

	rows []int32 // of Tokens as rows of n elements
}

func (b *PerLayer) inside() []Layer { return []Layer{b.Layer} }

func (b *PerLayer) n() int { return b.Gate[0].Out }

// Width implements [Layer].
func (b *PerLayer) Width(in int) (int, error) {
	if b == nil || missing(b.Layer) || b.Table == nil || b.Table.Table == nil || len(b.Table.Table.Shape) != 2 || b.Tokens == nil || b.Projection == nil || len(b.Gate) != 1 || len(b.Out) != 1 || b.Activation.gated == nil ||
		b.Index < 0 || b.Index >= b.Count || b.Norm.cols() != b.n() || b.Post.none() {
		return 0, fmt.Errorf("layers: a PerLayer without one of its parts, or with others' sizes: %w", snug.ErrConfig)
	}
	out, err := b.Layer.Width(in)
	if err != nil {
		return 0, err
	}
	if all := b.Count * b.n(); len(b.Tokens.Shape) != 2 || b.Tokens.Shape[1] != all || b.Projection.Len() != all*b.Table.Table.Shape[1] || b.Table.Table.Shape[1] != out {
		return 0, fmt.Errorf("layers: a PerLayer with tables of %v and %v for %d layers of %d elements: %w", b.Tokens.Shape, b.Projection.Shape, b.Count, b.n(), snug.ErrConfig)
	}
	if err := widthOf("the output of a PerLayer's layer", out, in); err != nil {
		return 0, err
	}
	return in, blockWidth(in, Norm{}, b.Post, b.Gate, b.Out[0], b.n())
}

// Params implements [Layer].
func (b *PerLayer) Params(yield func(*Param) bool) {
	if b == nil || missing(b.Layer) || b.Table == nil {
		return
	}
	more := true
	b.Layer.Params(func(w *Param) bool {
		more = yield(w)
		return more
	})
	if more {
		yieldAll(yield, []*Param{b.Tokens, b.Table.Table, b.Projection}, b.Norm.list(), listOf(b.Gate), listOf(b.Out), b.Post.list())
	}
}

type perLayerSaved struct {
	blockSaved
	inner    Saved
	z        *Tensor // which is in inner
	gate, up *Tensor
}

// Tensors implements [Saved].
func (s *perLayerSaved) Tensors(list []*Tensor) []*Tensor {
	if s.inner != nil {
		list = s.inner.Tensors(list)
	}
	return append(s.blockSaved.Tensors(list), s.gate, s.up)
}

// tokens returns the rows of Tokens, as rows of n elements, for the batch.
func (b *PerLayer) tokens(p *Pass) []int32 {
	b.rows = b.rows[:0]
	for _, t := range p.Batch.Tokens {
		if int(t) >= b.Tokens.Shape[0] {
			t = 0
		}
		b.rows = append(b.rows, t*int32(b.Count)+int32(b.Index))
	}
	return b.rows
}

// project computes c = P·t, and returns t.
func (b *PerLayer) project(p *Pass, c *Tensor) (t *Tensor) {
	t = b.Table.Forward(p, nil)
	n, dim := b.n(), b.Table.Table.Shape[1]
	p.macs += float64(p.rows) * float64(n) * float64(dim)
	p.Do(func() error {
		return b.Projection.With(false, func(w snug.View) error {
			return amp.MatMul(c.View, t.View, part(w, b.Index*n*dim, n*dim), amp.MatMulOptions{M: p.rows, N: n, K: dim, TransB: true})
		})
	})
	return t
}

const half = math.Sqrt2 / 2

// embed returns e.
func (b *PerLayer) embed(p *Pass) *Tensor {
	n := b.n()
	e := p.Get(n)
	p.Put(b.project(p, e))
	b.Norm.Compute(p, e, Stats{}, e)
	own := p.Get(n)
	p.Do(func() error {
		return b.Tokens.With(false, func(w snug.View) error { return fused.Embedding(own.View, w, b.tokens(p), part(w, 0, 0), nil, n) })
	})
	p.Do(func() error { return multiply(own.View, own.Len(), b.scale(p)) })
	p.Do(func() error { return fused.Add(e.View, e.View, own.View) })
	p.Put(own)
	p.Do(func() error { return multiply(e.View, e.Len(), half) })
	return e
}

// scale returns √n, which transformers rounds to the type of the weights.
func (b *PerLayer) scale(p *Pass) float32 {
	return (&Embedding{Scale: float32(math.Sqrt(float64(b.n())))}).scale(p)
}

// embedBackward adds the gradients of the shared parameters for the gradient de of e, which it overwrites.
func (b *PerLayer) embedBackward(p *Pass, de *Tensor) {
	shared := []*Param{b.Tokens, b.Projection, b.Norm.Weight, b.Table.Table}
	trains := false
	for i, w := range shared {
		if w.uses = b.Count; i == len(shared)-1 {
			w.uses++ // the embedding itself
		}
		if b.Index == b.Count-1 {
			w.used = 0
		}
		trains = trains || w.Trains
	}
	if !trains {
		return
	}
	n, dim := b.n(), b.Table.Table.Shape[1]
	p.Do(func() error { return multiply(de.View, de.Len(), half) })
	if b.Tokens.Trains {
		p.Do(func() error {
			acc, into, err := p.Gradient(b.Tokens)
			if err != nil {
				return err
			}
			if into.Alpha == 0 {
				into.Alpha = 1
			}
			into.Alpha *= b.scale(p)
			return fused.EmbeddingBackward(acc, de.View, b.tokens(p), n, into)
		})
		p.Done(b.Tokens)
	}
	c, s := p.Get(n), b.Norm.NewStats(p, 1)
	t := b.project(p, c)
	norm := p.Get(n) // whose values nobody reads
	b.Norm.Compute(p, norm, s, c)
	p.Put(norm)
	b.Norm.Gradients(p, de, de, s, c, 0)
	p.Put(c, s.rstd)
	if b.Projection.Trains {
		p.Do(func() error {
			acc, into, err := p.Gradient(b.Projection)
			if err != nil {
				return err
			}
			if into.Alpha == 0 {
				into.Alpha = 1
			}
			if into.Beta != 1 { // for the rows of all layers
				if err := multiply(acc, acc.Len(), into.Beta); err != nil {
					return err
				}
			}
			into.Beta = 1
			return amp.MatMul(part(acc, b.Index*n*dim, n*dim), de.View, t.View, amp.MatMulOptions{M: n, N: dim, K: p.rows, TransA: true, Into: into})
		})
		p.Done(b.Projection)
	}
	if !b.Table.Table.Trains {
		p.Put(t)
		return
	}
	p.Do(func() error {
		return b.Projection.With(false, func(w snug.View) error {
			return amp.MatMul(t.View, de.View, part(w, b.Index*n*dim, n*dim), amp.MatMulOptions{M: p.rows, N: dim, K: n})
		})
	})
	b.Table.gradients(p, t)
	p.Put(t)
}

// Forward implements [Layer].
func (b *PerLayer) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	z := b.Layer.Forward(p, x)
	e := b.embed(p)
	gate := p.Get(b.n())
	b.Gate[0].compute(p, gate, z, 0)
	b.Activation.compute(p, e, gate, e, nil)
	p.Put(gate)
	y := p.Get(b.Out[0].Out)
	leave(p, y, z, e, &b.Out[0], b.Post, nil)
	p.Put(e, z)
	return y
}

// ForwardSave implements [Layer].
func (b *PerLayer) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.save(p, x)
	return s.y, s
}

// Resave implements [Resaver].
func (b *PerLayer) Resave(p *Pass, x *Tensor) Saved { return b.save(p, x) }

func (b *PerLayer) save(p *Pass, x *Tensor) *perLayerSaved {
	if p.refuses(b, x) {
		return &perLayerSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}
	}
	s := newSaved[perLayerSaved](p)
	s.z, s.inner = b.Layer.ForwardSave(p, x)
	s.y = p.Get(b.Out[0].Out)
	s.keepPost(p, b.Post, b.Out[0].Out)
	s.up = b.embed(p)
	s.gate = p.Get(b.n())
	b.Gate[0].compute(p, s.gate, s.z, 0)
	act := p.Get(b.n())
	b.Activation.compute(p, act, s.gate, s.up, nil)
	leave(p, s.y, s.z, act, &b.Out[0], b.Post, &s.blockSaved)
	p.Put(act)
	return s
}

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *PerLayer) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	s := kept.(*perLayerSaved)
	dout := leaveBackward(p, dy, &b.Out[0], b.Post, &s.blockSaved)
	act := p.Get(b.n())
	b.Activation.compute(p, act, s.gate, s.up, nil)
	dact := linearBackward(p, act, b.Out, dout)
	p.Put(dout)
	b.Activation.gradients(p, dact, s.gate, s.up, nil)
	p.Put(dact)
	b.embedBackward(p, s.up)
	z := p.Get(b.Out[0].Out)
	p.copyTo(z, s.z)
	dz := linearBackward(p, z, b.Gate, s.gate)
	p.Do(func() error { return fused.Add(dy.View, dy.View, dz.View) })
	p.Put(dz)
	return b.Layer.Backward(p, x, s.inner, dy)
}
