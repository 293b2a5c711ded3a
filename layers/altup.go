package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
)

// AltUp is a layer of Gemma 3n, whose rows are several streams (Baykal et al. 2023, "Alternating Updates for Efficient Transformers",
// arXiv:2301.13310). It predicts all streams, computes one, the Active, and corrects all by what the prediction missed. For streams h,
// with a the active one, and m(r) = tanh(Router·norm(r)/width):
//
//	p[i] = h[i] + Σ C[i,j]·h[j]    C = Predict·m(h[a])
//	n = norm(p[a])    z = (p[a] + attention(n) + n + post(right(left(n))))/√2    y = z + mlp(z)
//	q[i] = p[i] + (1 + e[i])·(y − p[a])    e = Correct·m(y)
//	out[i] = q[i] + [i > 0]·post(out(act(gate·(Scale·q[a]))·e))    with the e of a [PerLayer]
//
// left and right are the Laurel, a residual of low rank. A tensor of streams has one after the other: row r of stream i is row i·rows + r.
// First makes the streams of the rows of an embedding, before a first layer, and Last rows of the streams, after a last one.
//
// It keeps what its Attention and its MLP keep but for their outputs. The backward step computes the rest again: the small matrices of
// prediction and correction, the Laurel and the gate. It works on the CPU.
type AltUp struct {
	Streams, Active          int
	RouterNorm               Norm
	Router, Predict, Correct Linear     // to Streams, Streams² and Streams elements; without adapters
	Norm                     Norm       // before attention and the Laurel
	Attention                *Attention // without a Norm, with a Post
	Laurel                   []Linear   // left and right
	LaurelPost               Norm
	MLP                      *MLP      // with a Post
	Scale                    *Param    // of as many elements as a row; nil for none
	PerLayer                 *PerLayer // without a Layer
	First, Last              *Streams  // nil for none

	squares, singles [][]int32 // rows of pairs for AddRows
	factors, sums    []float32 // of Scale, and of its gradient
	views            [4]Tensor // of streams
}

func (b *AltUp) inside() []Layer { return []Layer{b.Attention, b.MLP} }

// Width implements [Layer].
func (b *AltUp) Width(in int) (int, error) {
	if b == nil || b.Attention == nil || b.MLP == nil || b.PerLayer == nil || b.Streams < 2 || b.Streams > 64 || b.Active < 0 || b.Active >= b.Streams || len(b.Laurel) != 2 ||
		len(b.PerLayer.Gate) != 1 || len(b.PerLayer.Out) != 1 || b.Router.Out != b.Streams || b.Predict.Out != b.Streams*b.Streams || b.Correct.Out != b.Streams {
		return 0, fmt.Errorf("layers: an AltUp without one of its parts, or of other sizes: %w", snug.ErrConfig)
	}
	dim := b.Router.In
	if b.Attention.Post.none() || b.MLP.Post.none() || !b.Attention.Norm.none() || b.RouterNorm.none() || b.Norm.none() || b.LaurelPost.none() || b.PerLayer.Post.none() ||
		b.Scale != nil && b.Scale.Len() != dim {
		return 0, fmt.Errorf("layers: an AltUp without one of its norms, or with a norm of its Attention: %w", snug.ErrConfig)
	}
	for _, n := range [...]*Norm{&b.RouterNorm, &b.Norm, &b.LaurelPost, &b.PerLayer.Post} {
		if _, err := n.Width(dim); err != nil {
			return 0, err
		}
	}
	for _, l := range [...]Layer{b.Attention, b.MLP} {
		if _, err := l.Width(dim); err != nil {
			return 0, err
		}
	}
	from, to := b.Streams*dim, b.Streams*dim
	if b.First != nil {
		from = dim
	}
	if b.Last != nil {
		to = dim
	}
	return to, widthOf("an AltUp", in, from)
}

// Params implements [Layer].
func (b *AltUp) Params(yield func(*Param) bool) {
	if b == nil || b.Attention == nil || b.MLP == nil || b.PerLayer == nil || b.PerLayer.Table == nil {
		return
	}
	lists := [][]*Param{b.First.list(), b.RouterNorm.list(), b.Router.list(), b.Predict.list(), b.Norm.list(), listOf(b.Laurel), b.LaurelPost.list()}
	each := func(w *Param) bool { lists = append(lists, []*Param{w}); return true }
	b.Attention.Params(each)
	b.MLP.Params(each)
	l := b.PerLayer
	yieldAll(yield, append(lists, b.Correct.list(), []*Param{b.Scale, l.Tokens, l.Table.Table, l.Projection}, l.Norm.list(), listOf(l.Gate), listOf(l.Out), l.Post.list(), b.Last.list())...)
}

// altUpSaved is what an AltUp keeps.
type altUpSaved struct {
	output
	attention attentionSaved
	mlp       mlpSaved
}

// Tensors implements [Saved].
func (s *altUpSaved) Tensors(list []*Tensor) []*Tensor {
	return s.mlp.Tensors(s.attention.Tensors(append(list, s.y)))
}

func (b *AltUp) dim() int { return b.Router.In }

// stream returns stream i of x, until the next call for the same slot.
func (b *AltUp) stream(p *Pass, slot int, x *Tensor, i int) *Tensor {
	t := &b.views[slot]
	t.View = snug.View{}
	p.Do(func() error {
		t.View = part(x.View, i*p.rows*b.dim(), p.rows*b.dim())
		return nil
	})
	return t
}

// pairs returns the numbers k, each+k, 2·each+k, … of the rows.
func pairs(lists *[][]int32, rows, each, k int) []int32 {
	for len(*lists) < each {
		*lists = append(*lists, nil)
	}
	list := &(*lists)[k]
	for r := len(*list); r < rows; r++ {
		*list = append(*list, int32(r*each+k))
	}
	return (*list)[:rows]
}

// floats returns float32 numbers of a small tensor, plus one where plus is.
func (b *AltUp) floats(p *Pass, x *Tensor, width int, plus float32) *Tensor {
	y := p.Stat(width)
	p.Do(func() error {
		if err := amp.Cast(y.View, x.View); err != nil || plus == 0 {
			return err
		}
		for i, v := range y.Float32s() {
			y.Float32s()[i] = v + plus
		}
		return nil
	})
	return y
}

// heard is m(r), and what its backward step needs.
type heard struct {
	m, read *Tensor
	s       Stats
}

func (h heard) free(p *Pass) { p.Put(h.m, h.read, h.s.mean, h.s.rstd) }

// hear computes m(r).
func (b *AltUp) hear(p *Pass, r *Tensor) heard {
	h := heard{read: p.Get(b.dim()), m: p.Get(b.Streams), s: b.RouterNorm.NewStats(p, 1)}
	b.RouterNorm.Compute(p, h.read, h.s, r)
	p.Do(func() error { return multiply(h.read.View, h.read.Len(), 1/float32(b.dim())) })
	b.Router.compute(p, h.m, h.read, 0)
	p.Do(func() error { return fused.Activate(h.m.View, h.m.View, fused.Tanh) })
	return h
}

// hearBackward adds the gradient of r to dr, for the gradient dm of m, which it overwrites.
func (b *AltUp) hearBackward(p *Pass, h heard, dm, r, dr *Tensor) {
	p.Do(func() error { return fused.ActivateBackward(dm.View, dm.View, h.m.View, fused.Tanh) })
	b.Router.weightGradients(p, h.read, dm)
	b.Router.inputGradient(p, h.read, dm, 0)
	p.Done(b.Router.Weight)
	p.Do(func() error { return multiply(h.read.View, h.read.Len(), 1/float32(b.dim())) })
	b.RouterNorm.Gradients(p, dr, h.read, h.s, r, 1)
}

// predict computes p of streams x; C is of float32.
func (b *AltUp) predict(p *Pass, x *Tensor) (streams, c *Tensor, h heard) {
	n := b.Streams
	h = b.hear(p, b.stream(p, 0, x, b.Active))
	small := p.Get(n * n)
	b.Predict.compute(p, small, h.m, 0)
	c = b.floats(p, small, n*n, 0)
	p.Put(small)
	streams = p.Get(n * b.dim())
	p.copyTo(streams, x)
	for k := range n * n {
		to, from := b.stream(p, 0, streams, k/n), b.stream(p, 1, x, k%n)
		p.Do(func() error {
			return fused.AddRows(to.View, from.View, c.View, pairs(&b.squares, p.rows, n*n, k), n*n, b.dim())
		})
	}
	return streams, c, h
}

// laurel computes post(right(left(n))), and returns left(n) and right(left(n)), too. Without s it keeps nothing.
func (b *AltUp) laurel(p *Pass, n *Tensor, s Stats) (post, left, right *Tensor) {
	left, right, post = p.Get(b.Laurel[0].Out), p.Get(b.dim()), p.Get(b.dim())
	b.Laurel[0].compute(p, left, n, 0)
	b.Laurel[1].compute(p, right, left, 0)
	b.LaurelPost.Compute(p, post, s, right)
	return post, left, right
}

// add computes y += x.
func (p *Pass) add(y, x *Tensor) {
	p.Do(func() error { return fused.Add(y.View, y.View, x.View) })
}

// take computes y −= x.
func (p *Pass) take(y, x *Tensor) {
	p.times(y, -1)
	p.add(y, x)
	p.times(y, -1)
}

// times computes y *= factor.
func (p *Pass) times(y *Tensor, factor float32) {
	p.Do(func() error { return multiply(y.View, y.Len(), factor) })
}

// middle turns z, the output of attention, into the input of the MLP.
func (b *AltUp) middle(p *Pass, z, streams, n, laurel *Tensor) {
	p.add(z, b.stream(p, 0, streams, b.Active))
	p.add(z, n)
	p.add(z, laurel)
	p.times(z, half)
}

// missed turns a copy of y into y − p[a], and computes 1 + e, of float32.
func (b *AltUp) missed(p *Pass, y, streams *Tensor) (innovation, e *Tensor, h heard) {
	h = b.hear(p, y)
	small := p.Get(b.Streams)
	b.Correct.compute(p, small, h.m, 0)
	e = b.floats(p, small, b.Streams, 1)
	p.Put(small)
	innovation = p.Get(b.dim())
	p.copyTo(innovation, y)
	p.take(innovation, b.stream(p, 0, streams, b.Active))
	return innovation, e, h
}

// correct adds the innovation to stream i.
func (b *AltUp) correct(p *Pass, to, innovation, e *Tensor, i int) {
	p.Do(func() error {
		return fused.AddRows(to.View, innovation.View, e.View, pairs(&b.singles, p.rows, b.Streams, i), b.Streams, b.dim())
	})
}

// finish turns p into the output of the layer.
func (b *AltUp) finish(p *Pass, streams, y *Tensor) *Tensor {
	innovation, e, h := b.missed(p, y, streams)
	h.free(p)
	for i := range b.Streams {
		b.correct(p, b.stream(p, 0, streams, i), innovation, e, i)
	}
	p.Put(innovation, e)
	own, l := p.Get(b.dim()), b.PerLayer
	p.copyTo(own, b.stream(p, 0, streams, b.Active))
	b.scale(p, own, nil)
	gate, up := p.Get(l.n()), l.embed(p)
	l.Gate[0].compute(p, gate, own, 0)
	l.Activation.compute(p, up, gate, up, nil)
	p.Put(gate)
	leave(p, own, nil, up, &l.Out[0], l.Post, nil)
	p.Put(up)
	for i := 1; i < b.Streams; i++ {
		p.add(b.stream(p, 0, streams, i), own)
	}
	p.Put(own)
	return streams
}

// enter returns the streams of x, p of them, and n.
func (b *AltUp) enter(p *Pass, x *Tensor) (h, streams, n *Tensor) {
	if h = x; b.First != nil {
		h = b.First.widen(p, x)
	}
	streams, c, m := b.predict(p, h)
	m.free(p)
	p.Put(c)
	n = p.Get(b.dim())
	b.Norm.Compute(p, n, Stats{}, b.stream(p, 0, streams, b.Active))
	return h, streams, n
}

// drop frees streams that enter made for x.
func (b *AltUp) drop(p *Pass, h, x *Tensor) {
	if h != x {
		p.Put(h)
	}
}

// Query is [Attention.Query].
func (b *AltUp) Query(p *Pass, x *Tensor) (q, k, v *Tensor) {
	if p.refuses(b, x) {
		return &Tensor{}, nil, nil
	}
	h, streams, n := b.enter(p, x)
	b.drop(p, h, x)
	p.Put(streams)
	q, k, v = b.Attention.Query(p, n)
	p.Put(n)
	return q, k, v
}

// Leave returns the output of the layer for x and the output of attention, which it frees.
func (b *AltUp) Leave(p *Pass, x, att *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	h, streams, n := b.enter(p, x)
	b.drop(p, h, x)
	z := p.Get(b.dim())
	leave(p, z, nil, att, &b.Attention.Out[0], b.Attention.Post, nil)
	p.Put(att)
	b.between(p, z, streams, n)
	y := b.MLP.forward(p, nil, z, z)
	p.Put(z)
	streams = b.finish(p, streams, y)
	p.Put(y)
	return b.last(p, streams)
}

// between is middle with the Laurel, and frees n.
func (b *AltUp) between(p *Pass, z, streams, n *Tensor) {
	laurel, left, right := b.laurel(p, n, Stats{})
	b.middle(p, z, streams, n, laurel)
	p.Put(laurel, left, right, n)
}

// last returns the output of the layer for its streams, which it frees or returns.
func (b *AltUp) last(p *Pass, streams *Tensor) *Tensor {
	if b.Last == nil {
		return streams
	}
	y := b.Last.narrow(p, streams)
	p.Put(streams)
	return y
}

// Forward implements [Layer].
func (b *AltUp) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	a := b.Attention
	q, k, v := b.Query(p, x)
	a.Keeps.keep(p, k, v)
	if a.Reads != nil {
		k, v = a.Reads.read(p, a.keys())
	}
	att := p.Get(a.queries())
	a.attend(p, att, nil, q, k, v)
	p.Put(q, k, v)
	return b.Leave(p, x, att)
}

// Options is [Attention.Options].
func (b *AltUp) Options(p *Pass) (o attention.Options) {
	if b == nil {
		return o
	}
	return b.Attention.Options(p)
}

// ForwardSave implements [Layer].
func (b *AltUp) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.save(p, x, true)
	return s.y, s
}

// Resave implements [Resaver]. It leaves out what follows the MLP.
func (b *AltUp) Resave(p *Pass, x *Tensor) Saved { return b.save(p, x, false) }

func (b *AltUp) save(p *Pass, x *Tensor, whole bool) *altUpSaved {
	if p.refuses(b, x) {
		return &altUpSaved{output: output{&Tensor{}}}
	}
	s := newSaved[altUpSaved](p)
	h, streams, n := b.enter(p, x)
	b.drop(p, h, x)
	b.Attention.saveInto(p, &s.attention, nil, n, true)
	z := s.attention.y
	s.attention.y = nil
	b.between(p, z, streams, n)
	s.mlp.y = p.Get(b.dim())
	b.MLP.save(p, &s.mlp, z, z, whole)
	y := s.mlp.y
	s.mlp.y = nil
	p.Put(z)
	if whole {
		streams = b.finish(p, streams, y)
	}
	p.Put(y)
	s.y = b.last(p, streams)
	return s
}
