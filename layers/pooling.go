package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
)

// MaxPool takes the largest elements of the windows of rows that are images, signals or volumes, see [conv.MaxPool]. It keeps its output
// and which element of each window is the largest, in 2 to 8 bits for windows of up to 256 elements. The Batch does not count.
type MaxPool struct{ Shape conv.PoolShape }

// AvgPool takes the means of windows, see [conv.AvgPool]. It keeps nothing but its output. The Batch does not count.
type AvgPool struct{ Shape conv.PoolShape }

// Resize interpolates rows that are images, signals or volumes, see [conv.Resize]. It keeps nothing but its output. The Batch does not count.
type Resize struct{ Shape conv.ResizeShape }

// maxPoolSaved is what a MaxPool keeps.
type maxPoolSaved struct {
	output
	index *Tensor
}

// Tensors implements [Saved].
func (s *maxPoolSaved) Tensors(list []*Tensor) []*Tensor { return append(list, s.y, s.index) }

// pooled returns a shape of so many rows.
func pooled(s conv.PoolShape, rows int) conv.PoolShape {
	s.Batch = rows
	return s
}

func poolWidth(name string, s conv.PoolShape, in int) (int, error) {
	s = pooled(s, 1)
	if err := s.Check(); err != nil {
		return 0, fmt.Errorf("layers: %s: %w", name, err)
	}
	return s.YLen(), widthOf(name, in, s.XLen())
}

// Width implements [Layer].
func (l MaxPool) Width(in int) (int, error) { return poolWidth("MaxPool", l.Shape, in) }

// Params implements [Layer].
func (MaxPool) Params(func(*Param) bool) {}

// Forward implements [Layer].
func (l MaxPool) Forward(p *Pass, x *Tensor) *Tensor { return l.compute(p, x, nil) }

// compute returns the output, and keeps the index in s unless that is nil.
func (l MaxPool) compute(p *Pass, x *Tensor, s *maxPoolSaved) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	one, index := pooled(l.Shape, 1), (*Tensor)(nil)
	y := p.Get(one.YLen())
	if s != nil {
		index = p.pool.get(snug.U8, one.IndexLen())
		s.y, s.index = y, index
	}
	p.Do(func() error {
		v := snug.ViewOf8([]byte(nil))
		if index != nil {
			v = index.View
		}
		return conv.MaxPool(y.View, v, x.View, pooled(l.Shape, p.rows))
	})
	return y
}

// ForwardSave implements [Layer].
func (l MaxPool) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	if p == nil {
		return &Tensor{}, &maxPoolSaved{}
	}
	s := newSaved[maxPoolSaved](p)
	return l.compute(p, x, s), s
}

// Backward implements [Layer].
func (l MaxPool) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	s, is := kept.(*maxPoolSaved)
	if p.refuses(l, x) || !is {
		return dy
	}
	dx := p.Get(p.width(x))
	p.Do(func() error {
		return conv.MaxPoolBackward(dx.View, dy.View, s.index.View, pooled(l.Shape, p.rows), snug.Into{})
	})
	p.Put(dy)
	return dx
}

// Width implements [Layer].
func (l AvgPool) Width(in int) (int, error) {
	if l.Shape.Dilation != [3]int{} {
		return 0, fmt.Errorf("layers: AvgPool: Dilation is %v, want 0 for a mean: %w", l.Shape.Dilation, snug.ErrConfig)
	}
	return poolWidth("AvgPool", l.Shape, in)
}

// Params implements [Layer].
func (AvgPool) Params(func(*Param) bool) {}

// Forward implements [Layer].
func (l AvgPool) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	y := p.Get(pooled(l.Shape, 1).YLen())
	p.Do(func() error { return conv.AvgPool(y.View, x.View, pooled(l.Shape, p.rows)) })
	return y
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (l AvgPool) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, l, x) }

// Backward implements [Layer].
func (l AvgPool) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	if p.refuses(l, x) {
		return dy
	}
	dx := p.Get(p.width(x))
	p.Do(func() error {
		return conv.AvgPoolBackward(dx.View, dy.View, pooled(l.Shape, p.rows), snug.Into{})
	})
	p.Put(dy)
	return dx
}

// of returns the shape of so many rows.
func (l Resize) of(rows int) conv.ResizeShape {
	s := l.Shape
	s.Batch = rows
	return s
}

// Width implements [Layer].
func (l Resize) Width(in int) (int, error) {
	s := l.of(1)
	if err := s.Check(); err != nil {
		return 0, fmt.Errorf("layers: Resize: %w", err)
	}
	return s.YLen(), widthOf("Resize", in, s.XLen())
}

// Params implements [Layer].
func (Resize) Params(func(*Param) bool) {}

// resize calls do with the shape of the rows and a workspace.
func (l Resize) resize(p *Pass, do func(s conv.ResizeShape, ws snug.View) error) {
	p.Do(func() error {
		s := l.of(p.rows)
		ws, err := p.Workspace(s.WorkspaceLen())
		if err != nil {
			return err
		}
		return do(s, ws)
	})
}

// Forward implements [Layer].
func (l Resize) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	y := p.Get(l.of(1).YLen())
	l.resize(p, func(s conv.ResizeShape, ws snug.View) error { return conv.Resize(y.View, x.View, s, ws) })
	return y
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (l Resize) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, l, x) }

// Backward implements [Layer].
func (l Resize) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	if p.refuses(l, x) {
		return dy
	}
	dx := p.Get(p.width(x))
	l.resize(p, func(s conv.ResizeShape, ws snug.View) error {
		return conv.ResizeBackward(dx.View, dy.View, s, snug.Into{}, ws)
	})
	p.Put(dy)
	return dx
}
