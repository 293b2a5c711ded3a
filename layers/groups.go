package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// Groups divides the rows of a batch into as many groups of equal length as it has layers, one behind the other, and the rows of group
// i go through layer i: several projectors of one width as one layer. Layers in it see no sequences.
type Groups []Layer

// groupsSaved has the output of all groups, and what the layers keep besides theirs.
type groupsSaved struct {
	output
	sets []Saved
}

// Tensors implements [Saved].
func (s *groupsSaved) Tensors(list []*Tensor) []*Tensor {
	list = append(list, s.y)
	for _, set := range s.sets {
		list = set.Tensors(list)
	}
	return list
}

func (l Groups) inside() []Layer { return l }

// untiled implements untiled.
func (Groups) untiled() string { return "Groups, which divide all rows" }

// Width implements [Layer].
func (l Groups) Width(in int) (out int, err error) {
	for i, layer := range l {
		if missing(layer) || attends(layer) {
			return 0, fmt.Errorf("layers: layer %d of Groups is nil, or has an Attention: %w", i, snug.ErrConfig)
		}
		n, err := layer.Width(in)
		if err == nil && i > 0 {
			err = widthOf("the output of Groups", n, out)
		}
		if err != nil {
			return 0, err
		}
		out = n
	}
	if out == 0 {
		return 0, fmt.Errorf("layers: Groups of no layer: %w", snug.ErrConfig)
	}
	return out, nil
}

// Params implements [Layer].
func (l Groups) Params(yield func(*Param) bool) {
	more := true
	for _, layer := range l {
		if missing(layer) || !more {
			continue
		}
		layer.Params(func(w *Param) bool {
			more = yield(w)
			return more
		})
	}
}

// each calls do for each layer, whose rows are the batch of the pass meanwhile. rows returns those of a tensor of all rows, whose memory
// it borrows.
func (l Groups) each(p *Pass, do func(layer Layer, rows func(whole *Tensor, width int) *Tensor)) {
	batch := p.Batch
	n := max(1, batch.Rows/len(l))
	p.Do(func() error {
		if batch.Rows%len(l) != 0 {
			return fmt.Errorf("a batch of %d rows, want groups of equal length for each of %d layers: %w", batch.Rows, len(l), snug.ErrShape)
		}
		return nil
	})
	for i, layer := range l {
		p.Batch, p.rows = batch.rows(min(i*n, batch.Rows-n), n), n
		do(layer, func(whole *Tensor, width int) *Tensor { return Tiled{}.rowsAt(p, whole, width, i*n) })
	}
	p.Batch, p.rows = batch, batch.Rows
}

// Forward implements [Layer].
func (l Groups) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	in := p.width(x)
	out, _ := l.Width(in)
	y := p.Get(out)
	l.each(p, func(layer Layer, rows func(*Tensor, int) *Tensor) {
		part := layer.Forward(p, rows(x, in))
		p.copyTo(rows(y, out), part)
		p.Put(part)
	})
	return y
}

// ForwardSave implements [Layer].
func (l Groups) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	if p.refuses(l, x) {
		return &Tensor{}, &groupsSaved{}
	}
	in := p.width(x)
	out, _ := l.Width(in)
	s := &groupsSaved{output: output{p.Get(out)}}
	l.each(p, func(layer Layer, rows func(*Tensor, int) *Tensor) {
		part, set := layer.ForwardSave(p, rows(x, in))
		p.copyTo(rows(s.y, out), part)
		dropOutput(p, set)
		s.sets = append(s.sets, set)
	})
	return s.y, s
}

// Backward implements [Layer].
func (l Groups) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	s, is := kept.(*groupsSaved)
	if p.refuses(l, x) || !is || len(s.sets) != len(l) {
		return dy
	}
	in, out := p.width(x), p.width(dy)
	dx, i := p.Get(in), 0
	l.each(p, func(layer Layer, rows func(*Tensor, int) *Tensor) {
		d := p.Get(out)
		p.copyTo(d, rows(dy, out))
		d = layer.Backward(p, rows(x, in), s.sets[i], d)
		p.copyTo(rows(dx, in), d)
		p.Put(d)
		i++
	})
	p.Put(dy)
	return dx
}
