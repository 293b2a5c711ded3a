package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// Dropout sets elements to 0 with probability P, and divides the others by 1-P, while the pass has a window; in evaluation it is the
// identity. The mask depends on Options.Seed, Batch.Draw, Number and the element alone, so that a recomputation draws the same.
type Dropout struct {
	P      float32
	Number uint64 // of the layer, below 2^16 and unlike that of any other Dropout and adapter of the model
}

func (d Dropout) mask(p *Pass) fused.DropoutMask {
	return fused.DropoutMask{P: d.P, Seed: p.Seed, Tensor: p.Batch.Draw<<16 + d.Number}
}

// Width implements [Layer].
func (d Dropout) Width(in int) (int, error) {
	if !(d.P >= 0 && d.P < 1) || d.Number >= 1<<16 {
		return 0, fmt.Errorf("layers: a Dropout of P %v with the number %d, want 0 to less than 1 and below 2^16: %w", d.P, d.Number, snug.ErrConfig)
	}
	return in, nil
}

// Params implements [Layer].
func (Dropout) Params(func(*Param) bool) {}

// Forward implements [Layer].
func (d Dropout) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(d, x) {
		return &Tensor{}
	}
	y := p.Get(p.width(x))
	p.Do(func() error {
		if p.Window == nil {
			return snug.Copy(y.View, x.View)
		}
		return fused.Dropout(y.View, x.View, d.mask(p))
	})
	return y
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (d Dropout) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, d, x) }

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (d Dropout) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	if !p.refuses(d, x) {
		p.Do(func() error { return fused.DropoutBackward(dy.View, dy.View, d.mask(p)) })
	}
	return dy
}

func (Dropout) cheap() {}

// untiled implements untiled.
func (Dropout) untiled() string { return "a Dropout, whose mask all tiles would share" }
