package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// SharedExpert is an expert that every row has beside those that the router chooses for it (DeepSeek-AI 2024, arXiv:2401.06066). With a
// Gate, to one element, its output is multiplied by sigmoid(gate·h), as in Qwen2-MoE. A step holds its inner activations of all rows.
type SharedExpert struct {
	In, Down []Linear // gate and up, and down
	Gate     *Linear  // nil for none
}

// check returns an error if a matrix is missing, or does not take rows of in elements.
func (s *SharedExpert) check(in int) error {
	if s == nil {
		return nil
	}
	if len(s.In) != 2 || len(s.Down) != 1 || s.Gate != nil && s.Gate.Out != 1 {
		return fmt.Errorf("layers: a shared expert has %d and %d matrices, want 2 and 1, and a Gate to one element: %w", len(s.In), len(s.Down), snug.ErrConfig)
	}
	if err := blockWidth(in, Norm{}, Norm{}, s.In, s.Down[0], s.In[0].Out); err != nil {
		return err
	}
	if err := widthOf(s.In[1].Weight.Name, s.In[1].Out, s.In[0].Out); err != nil || s.Gate == nil {
		return err
	}
	_, err := s.Gate.Width(in)
	return err
}

func (s *SharedExpert) lists() (lists [][]*Param) {
	if s == nil {
		return nil
	}
	if lists = [][]*Param{listOf(s.In), listOf(s.Down)}; s.Gate != nil {
		lists = append(lists, s.Gate.list())
	}
	return lists
}

// inner computes gate and up.
func (s *SharedExpert) inner(p *Pass, h *Tensor) (gate, up *Tensor) {
	gate, up = p.Get(s.In[0].Out), p.Get(s.In[0].Out)
	s.In[0].compute(p, gate, h, 0)
	s.In[1].compute(p, up, h, 0)
	return gate, up
}

// openness is the router that makes sigmoids of single logits.
var openness = fused.Router{Experts: 1, Chosen: 1, Sigmoid: true}

// open returns the logits of the Gate and their sigmoids, which the caller frees.
func (s *SharedExpert) open(p *Pass, h *Tensor) (logits, weights *Tensor) {
	logits, weights = p.Get(1), p.Stat(1)
	s.Gate.compute(p, logits, h, 0)
	p.Do(func() error { return fused.Route(openness, p.routed.first(p.rows), weights.View, logits.View, nil) })
	return logits, weights
}

// addShared adds the output of the shared expert to y.
func (b *Experts) addShared(p *Pass, y, h *Tensor) {
	s := b.Shared
	if s == nil {
		return
	}
	gate, up := s.inner(p, h)
	b.Activation.compute(p, up, gate, up, nil)
	p.Put(gate)
	if s.Gate == nil {
		s.Down[0].compute(p, y, up, 1)
		p.Put(up)
		return
	}
	out := p.Get(b.dim())
	s.Down[0].compute(p, out, up, 0)
	p.Put(up)
	logits, weights := s.open(p, h)
	p.Do(func() error { return fused.AddRows(y.View, out.View, weights.View, p.routed.all(p.rows), 1, b.dim()) })
	p.Put(out, logits, weights)
}

// sharedBackward adds the shared expert's part of the gradient of h to dh, given the gradient d of y.
func (b *Experts) sharedBackward(p *Pass, dh, d, h *Tensor) {
	s := b.Shared
	if s == nil {
		return
	}
	gate, up := s.inner(p, h)
	act := p.Get(s.In[0].Out)
	b.Activation.compute(p, act, gate, up, nil)
	dout := d
	if s.Gate != nil {
		dout = p.Get(b.dim())
		s.Down[0].compute(p, dout, act, 0)
		s.gateBackward(p, dh, dout, d, h)
	}
	dact := linearBackward(p, act, s.Down, dout)
	if dout != d {
		p.Put(dout)
	}
	b.Activation.gradients(p, dact, gate, up, nil)
	p.Put(dact)
	in := p.Get(b.dim())
	p.copyTo(in, h)
	din := linearBackward(p, in, s.In, gate, up)
	p.Put(gate, up)
	p.Do(func() error { return fused.Add(dh.View, dh.View, din.View) })
	p.Put(din)
}

// gateBackward turns the output of Down into its gradient, and adds the Gate's part of the gradient of h.
func (s *SharedExpert) gateBackward(p *Pass, dh, out, d, h *Tensor) {
	logits, weights := s.open(p, h)
	dweights := p.Stat(1)
	p.Do(func() error {
		if err := fused.AddRowsBackward(out.View, dweights.View, d.View, out.View, weights.View, p.routed.all(p.rows), 1, s.Gate.In); err != nil {
			return err
		}
		return fused.RouteBackward(openness, logits.View, dweights.View, logits.View, p.routed.first(p.rows), nil)
	})
	s.Gate.weightGradients(p, h, logits)
	s.Gate.inputGradients(p, dh, logits, h, inner(p, h, []Linear{*s.Gate})[0], 1)
	p.Done(s.Gate.Weight, s.Gate.Bias)
	p.Put(logits, weights, dweights)
}

// first returns a list of so many zeros, and all the numbers from 0 on.
func (r *routed) first(rows int) []int32 {
	if len(r.zeros) < rows {
		r.zeros = make([]int32, rows)
	}
	return r.zeros[:rows]
}

func (r *routed) all(rows int) []int32 {
	for i := len(r.numbers); i < rows; i++ {
		r.numbers = append(r.numbers, int32(i))
	}
	return r.numbers[:rows]
}
