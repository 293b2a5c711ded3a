package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// Scaled is y = s·f(x) for a layer f and a number s, which does not train: the layer_scalar of Gemma 4. It keeps what f keeps.
type Scaled struct {
	Layer
	Factor *Param // s, one element, frozen

	value   [1]float32 // of Factor
	version uint64     // 1 more than the Number of the pass at which it was read
}

// Width implements [Layer].
func (l *Scaled) Width(in int) (int, error) {
	if l == nil || missing(l.Layer) || l.Factor == nil || l.Factor.Len() != 1 || l.Factor.Trains {
		return 0, fmt.Errorf("layers: a Scaled without a layer, or whose Factor is not one frozen element: %w", snug.ErrConfig)
	}
	return l.Layer.Width(in)
}

func (l *Scaled) inside() []Layer { return []Layer{l.Layer} }

// Params implements [Layer].
func (l *Scaled) Params(yield func(*Param) bool) {
	if l == nil || missing(l.Layer) {
		return
	}
	more := true
	l.Layer.Params(func(w *Param) bool {
		more = yield(w)
		return more
	})
	if more {
		yieldAll(yield, []*Param{l.Factor})
	}
}

// scale computes t = s·t.
func (l *Scaled) scale(p *Pass, t *Tensor) {
	p.Do(func() error {
		if l.version != p.Number+1 {
			if err := l.Factor.With(false, func(v snug.View) error { return l.read(p, v) }); err != nil {
				return err
			}
			l.version = p.Number + 1
		}
		return multiply(t.View, t.Len(), l.value[0])
	})
}

// read reads the factor.
func (l *Scaled) read(p *Pass, v snug.View) error {
	if p.dev.IsCPU() {
		return amp.Cast(snug.ViewOf(l.value[:]), v)
	}
	return p.read(l.value[:], v)
}

// Forward implements [Layer].
func (l *Scaled) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	y := l.Layer.Forward(p, x)
	l.scale(p, y)
	return y
}

// ForwardSave implements [Layer].
func (l *Scaled) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	if p.refuses(l, x) {
		return &Tensor{}, &output{}
	}
	y, s := l.Layer.ForwardSave(p, x)
	if readsOutput(s) {
		p.Do(func() error { return fmt.Errorf("a Scaled whose layer reads its output again: %w", snug.ErrConfig) })
	}
	l.scale(p, y)
	return y, s
}

// Resave implements [Resaver].
func (l *Scaled) Resave(p *Pass, x *Tensor) Saved {
	if p.refuses(l, x) {
		return &output{}
	}
	return resave(p, l.Layer, x)
}

// resave returns the saved set of a layer again, without the output where the layer can.
func resave(p *Pass, l Layer, x *Tensor) Saved {
	if r, is := l.(Resaver); is {
		return r.Resave(p, x)
	}
	_, s := l.ForwardSave(p, x)
	return s
}

// Backward implements [Layer]. It multiplies dy in place.
func (l *Scaled) Backward(p *Pass, x *Tensor, s Saved, dy *Tensor) *Tensor {
	if p.refuses(l, x) {
		return dy
	}
	l.scale(p, dy)
	return l.Layer.Backward(p, x, s, dy)
}
