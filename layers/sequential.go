package layers

import (
	"fmt"
	"reflect"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Sequential is one layer after the other. Where the output of a norm or of an activation is the input of another layer, it is
// not kept: the backward step computes it again. ReLU, ReLU6 and LeakyReLU of a slope of 0 or more overwrite their input, unless
// that is the Sequential's. Where one of them is last, the backward step reads the output, which a layer around the Sequential must not
// change: [Residual] and [Sum] give that one memory of its own.
type Sequential []Layer

// cheap is a layer whose output costs less to compute again than to keep.
type cheap interface{ cheap() }

// seqSaved has nil for the sets that are not kept, and the outputs of the others.
type seqSaved struct {
	sets  []Saved
	outs  []*Tensor
	reads bool // the backward step reads the last output
}

// readsOutput reports whether a backward step reads the output in its set, which a layer around it must not change then.
func readsOutput(s Saved) bool {
	set, is := s.(*seqSaved)
	return is && set.reads
}

// Tensors implements [Saved].
func (s *seqSaved) Tensors(list []*Tensor) []*Tensor {
	for _, set := range s.sets {
		if set != nil {
			list = set.Tensors(list)
		}
	}
	return list
}

func (s *seqSaved) dropOutput(p *Pass) {
	for _, last := range s.sets[max(0, len(s.sets)-1):] {
		dropOutput(p, last)
	}
}

func (l Sequential) inside() []Layer { return l }

// missing reports whether a layer is nil.
func missing(l Layer) bool {
	v := reflect.ValueOf(l)
	return l == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

// Width implements [Layer].
func (l Sequential) Width(in int) (width int, err error) {
	if width = in; len(l) == 0 {
		return 0, fmt.Errorf("layers: a Sequential of no layer: %w", snug.ErrConfig)
	}
	rows := image{}
	for i, layer := range l {
		if missing(layer) {
			return 0, fmt.Errorf("layers: layer %d of a Sequential is nil: %w", i, snug.ErrConfig)
		}
		if width, err = layer.Width(width); err != nil {
			return 0, err
		}
		if rows, err = rows.after(layer); err != nil {
			return 0, err
		}
	}
	return width, nil
}

// Params implements [Layer].
func (l Sequential) Params(yield func(*Param) bool) {
	more := true
	for i := 0; i < len(l) && more; i++ {
		if !missing(l[i]) {
			l[i].Params(func(w *Param) bool {
				more = yield(w)
				return more
			})
		}
	}
}

// overwrites reports whether layer i overwrites the output of the layer before.
func (l Sequential) overwrites(i int) bool {
	if i < 1 || i >= len(l) || l.overwrites(i-1) {
		return false
	}
	a, is := l[i].(Activation)
	return is && a.onto
}

// end returns the layer after layer i, and after the activation that overwrites its output.
func (l Sequential) end(i int) int {
	if l.overwrites(i + 1) {
		return i + 2
	}
	return i + 1
}

// dropped reports whether the output of layer i is not kept.
func (l Sequential) dropped(i int) bool {
	_, again := l[i].(cheap)
	return again && l.end(i) < len(l)
}

// activate computes what overwrites the output y of layer i.
func (l Sequential) activate(p *Pass, i int, y *Tensor) {
	if l.overwrites(i + 1) {
		l[i+1].(Activation).overwrite(p, y)
	}
}

// Forward implements [Layer].
func (l Sequential) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	y := x
	for i := 0; i < len(l); i = l.end(i) {
		next := l[i].Forward(p, y)
		if y != x {
			p.Put(y)
		}
		l.activate(p, i, next)
		y = next
	}
	return y
}

// ForwardSave implements [Layer].
func (l Sequential) ForwardSave(p *Pass, x *Tensor) (y *Tensor, kept Saved) {
	s := &seqSaved{sets: make([]Saved, len(l)), outs: make([]*Tensor, len(l)), reads: l.overwrites(len(l) - 1)}
	if p.refuses(l, x) {
		return &Tensor{}, s
	}
	y = x
	drop := false // y
	for i := 0; i < len(l); i = l.end(i) {
		var next *Tensor
		if l.dropped(i) {
			next = l[i].Forward(p, y)
		} else {
			next, s.sets[i] = l[i].ForwardSave(p, y)
		}
		if drop {
			p.Put(y)
		}
		l.activate(p, i, next)
		y, s.outs[i], drop = next, next, l.dropped(i)
	}
	s.reads = s.reads || readsOutput(s.sets[len(l)-1])
	return y, s
}

// Backward implements [Layer].
func (l Sequential) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	return l.backward(p, x, kept, dy, false)
}

// backwardFirst implements starter.
func (l Sequential) backwardFirst(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	return l.backward(p, x, kept, dy, true)
}

func (l Sequential) backward(p *Pass, x *Tensor, kept Saved, dy *Tensor, first bool) *Tensor {
	if p.refuses(l, x) {
		return dy
	}
	s := kept.(*seqSaved)
	for i := len(l) - 1; i >= 0; i-- {
		dy = backward(p, l[i], l.input(p, x, s, i), s.sets[i], dy, first && i == 0)
		if l.dropped(i) && !l.overwrites(i) {
			p.ReleaseSaved(s.sets[i])
			s.sets[i] = nil
		}
	}
	return dy
}

// input returns the input of layer i, or the output of one that has overwritten it. It computes the input again with the saved set
// of the layer before if that was not kept.
func (l Sequential) input(p *Pass, x *Tensor, s *seqSaved, i int) *Tensor {
	if i == 0 {
		return x
	}
	if i--; l.overwrites(i) {
		i--
	}
	if s.sets[i] == nil {
		in := l.input(p, x, s, i)
		p.again(func() { s.outs[i], s.sets[i] = l[i].ForwardSave(p, in) })
		l.activate(p, i, s.outs[i])
	}
	return s.outs[i]
}

// Residual is y = x + f(x) for a layer f whose output has the width of its input.
type Residual struct{ Layer }

func (r Residual) inside() []Layer { return []Layer{r.Layer} }

// Width implements [Layer].
func (r Residual) Width(in int) (int, error) {
	if r.Layer == nil {
		return 0, fmt.Errorf("layers: a Residual without a layer: %w", snug.ErrConfig)
	}
	out, err := r.Layer.Width(in)
	if err != nil {
		return 0, err
	}
	return in, widthOf("the output of a Residual", out, in)
}

// Params implements [Layer].
func (r Residual) Params(yield func(*Param) bool) {
	if r.Layer != nil {
		r.Layer.Params(yield)
	}
}

// Forward implements [Layer].
func (r Residual) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(r, x) {
		return &Tensor{}
	}
	y := r.Layer.Forward(p, x)
	p.Do(func() error { return fused.Add(y.View, y.View, x.View) })
	return y
}

// residualSaved is the set of the layer, and the output if that has memory of its own.
type residualSaved struct {
	Saved
	y *Tensor
}

// Tensors implements [Saved].
func (s *residualSaved) Tensors(list []*Tensor) []*Tensor {
	if s.y != nil {
		list = append(list, s.y)
	}
	return s.Saved.Tensors(list)
}

func (s *residualSaved) dropOutput(p *Pass) {
	if s.y == nil {
		dropOutput(p, s.Saved)
	}
	p.Put(s.y)
	s.y = nil
}

// ForwardSave implements [Layer].
func (r Residual) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	if p.refuses(r, x) {
		return &Tensor{}, &output{}
	}
	f, set := r.Layer.ForwardSave(p, x)
	s, y := &residualSaved{Saved: set}, f
	if readsOutput(set) {
		y = p.Get(p.width(f))
		s.y = y
	}
	p.Do(func() error { return fused.Add(y.View, f.View, x.View) })
	return y, s
}

// Backward implements [Layer].
func (r Residual) Backward(p *Pass, x *Tensor, s Saved, dy *Tensor) *Tensor {
	kept, is := s.(*residualSaved)
	if p.refuses(r, x) || !is {
		return dy
	}
	through := p.Get(p.width(dy))
	p.copyTo(through, dy)
	dx := r.Layer.Backward(p, x, kept.Saved, through)
	p.Do(func() error { return fused.Add(dy.View, dy.View, dx.View) })
	p.Put(dx)
	return dy
}
