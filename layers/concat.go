package layers

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Concat is y = [x, f(x)], row by row: for images, which have channels first, the channels of x, then those of f(x). It is the skip
// connection of a U-Net, around all that lies below (Ronneberger et al. 2015, arXiv:1505.04597). For a plan it is one stage:
// a [Tiled] around it takes less memory than a plan of the rest.
type Concat struct{ Layer }

// concatSaved is the output, and what the layer keeps.
type concatSaved struct {
	output
	s Saved
}

// Tensors implements [Saved].
func (s *concatSaved) Tensors(list []*Tensor) []*Tensor {
	if list = append(list, s.y); s.s != nil {
		list = s.s.Tensors(list)
	}
	return list
}

func (l Concat) inside() []Layer { return []Layer{l.Layer} }

// Width implements [Layer].
func (l Concat) Width(in int) (int, error) {
	if l.Layer == nil {
		return 0, fmt.Errorf("layers: a Concat without a layer: %w", snug.ErrConfig)
	}
	out, err := l.Layer.Width(in)
	if err == nil {
		if from, to := wrapped(l.Layer); from.last && from.positions > 1 || to.last && to.positions > 1 {
			err = fmt.Errorf("layers: a Concat of images with channels last, whose channels do not lie one after the other: %w", snug.ErrConfig)
		}
	}
	if err == nil && out > math.MaxInt-in {
		err = fmt.Errorf("layers: a Concat of %d and %d elements: %w", in, out, snug.ErrShape)
	}
	if err != nil {
		return 0, err
	}
	return in + out, nil
}

// Params implements [Layer].
func (l Concat) Params(yield func(*Param) bool) {
	if l.Layer != nil {
		l.Layer.Params(yield)
	}
}

// copyColumns copies columns of rows: n of each, from column at of rows of width elements to column to of others.
func copyColumns(p *Pass, dst *Tensor, to, dstWidth int, src *Tensor, at, width, n int) {
	p.Do(func() error {
		for row := range p.rows {
			if err := snug.Copy(part(dst.View, row*dstWidth+to, n), part(src.View, row*width+at, n)); err != nil {
				return err
			}
		}
		return nil
	})
}

// join returns [x, y].
func (l Concat) join(p *Pass, x, y *Tensor) *Tensor {
	in, out := p.width(x), p.width(y)
	both := p.Get(in + out)
	copyColumns(p, both, 0, in+out, x, 0, in, in)
	copyColumns(p, both, in, in+out, y, 0, out, out)
	return both
}

// Forward implements [Layer].
func (l Concat) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	y := l.Layer.Forward(p, x)
	both := l.join(p, x, y)
	p.Put(y)
	return both
}

// ForwardSave implements [Layer].
func (l Concat) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	if p.refuses(l, x) {
		return &Tensor{}, &concatSaved{}
	}
	y, set := l.Layer.ForwardSave(p, x)
	s := &concatSaved{output{l.join(p, x, y)}, set}
	dropOutput(p, set)
	return s.y, s
}

// Backward implements [Layer].
func (l Concat) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	s, is := kept.(*concatSaved)
	if p.refuses(l, x) || !is {
		return dy
	}
	in, both := p.width(x), p.width(dy)
	dx, d := p.Get(in), p.Get(both-in)
	copyColumns(p, dx, 0, in, dy, 0, both, in)
	copyColumns(p, d, 0, both-in, dy, in, both, both-in)
	p.Put(dy)
	d = l.Layer.Backward(p, x, s.s, d)
	p.Do(func() error { return fused.Add(dx.View, dx.View, d.View) })
	p.Put(d)
	return dx
}
