package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Beside is y = x + post(mlp(x) + experts(x)), where mlp and experts are what an [MLP] and [Experts] add to their input, each with norms
// of its own: a dense MLP beside experts in one layer, as in Gemma 4 26B-A4B. It keeps what they keep but for their outputs; the backward
// step adds the outputs of their norms again. [Options.Tiles] does not hold for its MLP.
type Beside struct {
	MLP     *MLP     // with a Post
	Experts *Experts // with a Post
	Post    Norm
}

func (b *Beside) inside() []Layer { return []Layer{b.MLP, b.Experts} }

// Width implements [Layer].
func (b *Beside) Width(in int) (int, error) {
	if b == nil || b.MLP == nil || b.Experts == nil || b.MLP.Post.none() || b.Experts.Post.none() || b.Post.none() {
		return 0, fmt.Errorf("layers: a Beside without MLP or Experts, or without a norm after each and after both: %w", snug.ErrConfig)
	}
	for _, l := range [...]Layer{b.MLP, b.Experts} {
		if _, err := l.Width(in); err != nil {
			return 0, err
		}
	}
	return b.Post.Width(in)
}

// Params implements [Layer].
func (b *Beside) Params(yield func(*Param) bool) {
	if b == nil || b.MLP == nil || b.Experts == nil {
		return
	}
	more := true
	each := func(p *Param) bool { more = more && yield(p); return more }
	for _, l := range [...]Layer{b.MLP, b.Experts, b.Post} {
		l.Params(each)
	}
}

// besideSaved is what a Beside keeps. The output is in the set of experts.
type besideSaved struct {
	mlp     mlpSaved
	experts expertsSaved
	post    Stats
}

// Tensors implements [Saved].
func (s *besideSaved) Tensors(list []*Tensor) []*Tensor {
	return append(s.mlp.Tensors(s.experts.Tensors(list)), s.post.mean, s.post.rstd)
}

// Forward implements [Layer].
func (b *Beside) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	y := b.MLP.forward(p, nil, nil, x)
	sum := p.Get(p.width(x))
	p.Put(b.Experts.forward(p, nil, sum, nil, x))
	b.join(p, y, sum, x, Stats{})
	p.Put(sum)
	return y
}

// join turns y, the MLP's part, into the output.
func (b *Beside) join(p *Pass, y, sum, x *Tensor, s Stats) {
	p.Do(func() error { return fused.Add(y.View, y.View, sum.View) })
	b.Post.Compute(p, y, s, y)
	p.Do(func() error { return fused.Add(y.View, y.View, x.View) })
}

// ForwardSave implements [Layer].
func (b *Beside) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.save(p, x)
	return s.experts.y, s
}

// Resave implements [Resaver].
func (b *Beside) Resave(p *Pass, x *Tensor) Saved { return b.save(p, x) }

func (b *Beside) save(p *Pass, x *Tensor) *besideSaved {
	if p.refuses(b, x) {
		return &besideSaved{experts: expertsSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}}
	}
	s, y := newSaved[besideSaved](p), p.Get(p.width(x))
	s.post = b.Post.NewStats(p, 1)
	s.mlp.y = y
	b.MLP.save(p, &s.mlp, nil, x, true)
	s.mlp.y = nil
	sum := p.Get(p.width(x))
	b.Experts.save(p, &s.experts, sum, nil, x, true)
	b.join(p, y, sum, x, s.post)
	p.Put(sum)
	s.experts.y = y
	return s
}

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *Beside) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	s := kept.(*besideSaved)
	d, sum := p.Get(p.width(x)), p.Get(p.width(x))
	b.MLP.Post.Compute(p, d, Stats{}, s.mlp.half)
	b.Experts.Post.Compute(p, sum, Stats{}, s.experts.half)
	p.Do(func() error { return fused.Add(sum.View, d.View, sum.View) })
	b.Post.Gradients(p, d, dy, s.post, sum, 0)
	p.Put(sum)
	b.MLP.backward(p, x, &s.mlp, d, dy, 1)
	b.Experts.backward(p, x, &s.experts, d, dy)
	p.Put(d)
	return dy
}
