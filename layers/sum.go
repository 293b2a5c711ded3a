package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Sum is y = f(x) + g(x) + ... for layers with outputs of one width, such as a residual block and the convolution on its shortcut. The
// outputs are added into the first one. Sum keeps what the layers keep, except for outputs that no backward step reads; the first is the sum.
type Sum []Layer

// sumSaved is what a Sum keeps.
type sumSaved struct {
	y    *Tensor // the output, unless that is the first layer's
	sets []Saved // of the layers
}

// Tensors implements [Saved].
func (s *sumSaved) Tensors(list []*Tensor) []*Tensor {
	if s.y != nil {
		list = append(list, s.y)
	}
	for _, set := range s.sets {
		list = set.Tensors(list)
	}
	return list
}

func (s *sumSaved) dropOutput(p *Pass) {
	if s.y == nil && len(s.sets) > 0 {
		dropOutput(p, s.sets[0])
	}
	p.Put(s.y)
	s.y = nil
}

func (l Sum) inside() []Layer { return l }

// Width implements [Layer].
func (l Sum) Width(in int) (width int, err error) {
	if len(l) == 0 {
		return 0, fmt.Errorf("layers: a Sum of no layer: %w", snug.ErrConfig)
	}
	for i, layer := range l {
		if missing(layer) {
			return 0, fmt.Errorf("layers: layer %d of a Sum is nil: %w", i, snug.ErrConfig)
		}
		out, err := layer.Width(in)
		if err == nil && i > 0 {
			err = widthOf("an output in a Sum", out, width)
		}
		if err != nil {
			return 0, err
		}
		width = out
		firstIn, firstOut := wrapped(l[0])
		from, to := wrapped(layer)
		if err := firstIn.check(from); err != nil {
			return 0, err
		}
		if err := firstOut.check(to); err != nil {
			return 0, err
		}
	}
	return width, nil
}

// Params implements [Layer].
func (l Sum) Params(yield func(*Param) bool) { Sequential(l).Params(yield) }

// Forward implements [Layer].
func (l Sum) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	var y *Tensor
	for _, layer := range l {
		y = addTo(p, y, layer.Forward(p, x))
	}
	return y
}

// addTo adds x to sum, frees x and returns sum. If sum is nil, it returns x.
func addTo(p *Pass, sum, x *Tensor) *Tensor {
	if sum == nil {
		return x
	}
	p.Do(func() error { return fused.Add(sum.View, sum.View, x.View) })
	p.Put(x)
	return sum
}

// ForwardSave implements [Layer].
func (l Sum) ForwardSave(p *Pass, x *Tensor) (y *Tensor, kept Saved) {
	s := &sumSaved{}
	if p.refuses(l, x) {
		return &Tensor{}, s
	}
	for i, layer := range l {
		out, set := layer.ForwardSave(p, x)
		s.sets = append(s.sets, set)
		switch {
		case i > 0:
			p.Do(func() error { return fused.Add(y.View, y.View, out.View) })
			dropOutput(p, set)
		case readsOutput(set):
			y = p.Get(p.width(out))
			p.copyTo(y, out)
			s.y = y
		default:
			y = out
		}
	}
	return y, s
}

// Backward implements [Layer].
func (l Sum) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) (dx *Tensor) {
	s, is := kept.(*sumSaved)
	if p.refuses(l, x) || !is {
		return dy
	}
	for i, layer := range l {
		d := dy
		if i < len(l)-1 {
			d = p.Get(p.width(dy))
			p.copyTo(d, dy)
		}
		dx = addTo(p, dx, layer.Backward(p, x, s.sets[i], d))
	}
	return dx
}

// images implements imaged, by the first layer that knows its images.
func (l Sum) images() (in, out image) {
	for _, layer := range l {
		if in, out = wrapped(layer); in.channels > 0 || out.channels > 0 {
			break
		}
	}
	return in, out
}
