package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// NoGrad runs a layer without a gradient, as under torch.no_grad: a frozen backbone, of whose layers each is a NoGrad. It keeps its
// output alone and has no backward step: the gradient of its input is 0. [NewModel] refuses one with a parameter that trains. What is
// not a parameter still changes in training, as the averages of a [BatchNorm] do that is not Frozen, and a [Source] within it gets no
// gradient.
type NoGrad struct{ Layer Layer }

func (l NoGrad) inside() []Layer { return []Layer{l.Layer} }

func (l NoGrad) images() (in, out image) { return wrapped(l.Layer) }

// check returns an error if a parameter trains.
func (l NoGrad) check() (err error) {
	l.Params(func(w *Param) bool {
		if w != nil && w.Trains {
			err = fmt.Errorf("a NoGrad with the parameter %s, which trains: %w", w.Name, snug.ErrConfig)
		}
		return err == nil
	})
	return err
}

// Width implements [Layer].
func (l NoGrad) Width(in int) (int, error) {
	if missing(l.Layer) {
		return 0, fmt.Errorf("layers: a NoGrad without a layer: %w", snug.ErrConfig)
	}
	return l.Layer.Width(in)
}

// Params implements [Layer].
func (l NoGrad) Params(yield func(*Param) bool) {
	if !missing(l.Layer) {
		l.Layer.Params(yield)
	}
}

// Forward implements [Layer].
func (l NoGrad) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	return l.Layer.Forward(p, x)
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (l NoGrad) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, l, x) }

// Backward implements [Layer].
func (l NoGrad) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	return l.backward(p, x, dy, false)
}

// backwardFirst implements starter.
func (l NoGrad) backwardFirst(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	return l.backward(p, x, dy, true)
}

func (l NoGrad) backward(p *Pass, x, dy *Tensor, first bool) *Tensor {
	if p.refuses(l, x) {
		return dy
	}
	p.Put(dy)
	dx := p.Get(p.width(x))
	if !first {
		p.Do(func() error { return multiply(dx.View, dx.Len(), 0) })
	}
	return dx
}
