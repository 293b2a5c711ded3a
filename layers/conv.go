package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/conv"
)

// Conv is a convolution of rows that are images, signals or volumes, see [conv.Shape]: a row has all channels and positions of one.
type Conv struct {
	Weight, Bias *Param     // in PyTorch's order; Bias is nil for none
	Shape        conv.Shape // of one row: Batch is that of the pass
}

// NewConv returns a Conv with the parameter name.weight, which begins normally distributed with a deviation of 1/√n for sums of n
// products, and with bias name.bias, which begins as 0. The Batch of s does not count.
func NewConv(name string, s conv.Shape, bias bool) *Conv {
	s.Batch = 1
	channels, taps := []int{s.Out, s.In / max(1, s.Groups)}, 1
	if s.Transposed {
		channels = []int{s.In, s.Out / max(1, s.Groups)}
	}
	for _, k := range s.Kernel[:min(max(s.Dims, 0), 3)] {
		channels = append(channels, k)
		taps *= k
	}
	c := &Conv{Weight: newParam(name+".weight", deviation(max(1, s.In/max(1, s.Groups)*taps)), channels...), Shape: s}
	if bias {
		c.Bias = newParam(name+".bias", 0, s.Out)
	}
	return c
}

// shape returns that of the rows that are computed now.
func (c *Conv) shape(p *Pass) conv.Shape {
	s := c.Shape
	s.Batch = p.rows
	return s
}

// one returns the shape of a row.
func (c *Conv) one() conv.Shape {
	s := c.Shape
	s.Batch = 1
	return s
}

func (c *Conv) list() []*Param { return []*Param{c.Weight, c.Bias} }

// work returns the multiply-adds of a pass; those of taps in the padding count.
func (c *Conv) work(p *Pass) float64 {
	s := c.one()
	positions := s.YLen() / s.Out
	if s.Transposed {
		positions = s.XLen() / s.In
	}
	return float64(p.rows) * float64(positions) * float64(s.WLen())
}

// Width implements [Layer].
func (c *Conv) Width(in int) (int, error) {
	if c == nil || c.Weight == nil {
		return 0, fmt.Errorf("layers: a Conv without Weight: %w", snug.ErrConfig)
	}
	s := c.one()
	if err := s.Check(); err != nil {
		return 0, fmt.Errorf("layers: %s: %w", c.Weight.Name, err)
	}
	if c.Weight.Len() != s.WLen() || c.Bias != nil && c.Bias.Len() != s.Out || c.Weight.Quantized != nil {
		return 0, fmt.Errorf("layers: %s of %v elements, want %d in floats, and %d of the Bias: %w", c.Weight.Name, c.Weight.Shape, s.WLen(), s.Out, snug.ErrConfig)
	}
	return s.YLen(), widthOf(c.Weight.Name, in, s.XLen())
}

// Params implements [Layer].
func (c *Conv) Params(yield func(*Param) bool) { yieldAll(yield, c.list()) }

// Forward implements [Layer].
func (c *Conv) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(c, x) {
		return &Tensor{}
	}
	p.macs += c.work(p)
	y := p.Get(c.one().YLen())
	p.Do(func() error {
		return c.Weight.With(false, func(w snug.View) error {
			bias := snug.View{}
			if c.Bias != nil {
				bias = c.Bias.Value
			}
			return conv.Forward(y.View, x.View, w, bias, c.shape(p))
		})
	})
	return y
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (c *Conv) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, c, x) }

// Backward implements [Layer].
func (c *Conv) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	return c.backward(p, x, dy, false)
}

// backwardFirst implements starter.
func (c *Conv) backwardFirst(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	return c.backward(p, x, dy, true)
}

func (c *Conv) backward(p *Pass, x, dy *Tensor, first bool) *Tensor {
	if p.refuses(c, x) {
		return dy
	}
	c.gradients(p, x, dy)
	dx := p.Get(c.one().XLen())
	if !first {
		p.macs += c.work(p)
		p.Do(func() error {
			return c.Weight.With(false, func(w snug.View) error { return conv.BackwardInput(dx.View, dy.View, w, c.shape(p), snug.Into{}) })
		})
	}
	p.Done(c.Weight, c.Bias)
	p.Put(dy)
	return dx
}

// gradients adds to the gradients of the weight and the bias, each in a call of its own: a window may treat them differently.
func (c *Conv) gradients(p *Pass, x, dy *Tensor) {
	for _, w := range c.list() {
		if w == nil || !w.Trains {
			continue
		}
		if w == c.Weight {
			p.macs += c.work(p)
		}
		p.Do(func() error {
			dw, into, err := p.Gradient(w)
			if err != nil {
				return err
			}
			s, db := c.shape(p), none32
			if w == c.Bias {
				dw, db = none32, dw
			}
			ws, err := p.Workspace(s.WorkspaceLen())
			if err != nil {
				return err
			}
			return conv.BackwardWeight(dw, db, x.View, dy.View, s, into, ws)
		})
	}
}
