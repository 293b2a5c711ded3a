package layers

import (
	"fmt"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/conv"
)

// ConvLoRA is a convolution with a LoRA adapter (Hu et al. 2021, arXiv:2106.09685), as in PEFT:
//
//	y = Conv(x) + B(Scale·A(x))
//
// A has the kernel, stride, dilation and padding of Conv, one group, and rank output channels. B is a convolution with kernel 1 and
// the groups of Conv. The layer keeps its own output and that of A. There is no lora_dropout: a [Dropout] before the layer drops
// the input of Conv too.
type ConvLoRA struct {
	Conv, A, B *Conv
	Scale      float32 // alpha/rank, or alpha/√rank of a rank-stabilized LoRA
}

// NewConvLoRA freezes c, whose weight is named name.weight, and adds an adapter. Its parameters, in the DType of the pass, are
//
//	name.lora_A.weight   [rank, In, kernel...]            normally distributed, with the variance of PEFT's uniform distribution
//	name.lora_B.weight   [Out, rank/Groups, 1...]         zeros
//
// Width returns an error for a transposed convolution, and for a rank that is not a multiple of the groups.
func NewConvLoRA(c *Conv, rank int, scale float32) ConvLoRA {
	if c == nil || c.Weight == nil {
		return ConvLoRA{Conv: c}
	}
	for _, w := range c.list() {
		if w != nil {
			w.Trains = false
		}
	}
	name, down := strings.TrimSuffix(c.Weight.Name, ".weight"), c.one()
	up := conv.Shape{In: rank, Out: down.Out, Groups: down.Groups, Dims: down.Dims, Size: down.OutSize(), Layout: down.Layout}
	for i := range min(max(up.Dims, 0), 3) {
		up.Kernel[i] = 1
	}
	down.Out, down.Groups = rank, 1
	l := ConvLoRA{c, NewConv(name+".lora_A", down, false), NewConv(name+".lora_B", up, false), scale}
	l.A.Weight.deviation /= math.Sqrt(3) // of a uniform distribution up to 1/√n
	l.B.Weight.deviation = 0
	return l
}

func (l ConvLoRA) sum() Sum { return Sum{l.Conv, Sequential{l.A, scaled(l.Scale), l.B}} }

func (l ConvLoRA) inside() []Layer { return l.sum() }

func (l ConvLoRA) images() (in, out image) { return wrapped(l.Conv) }

// Width implements [Layer].
func (l ConvLoRA) Width(in int) (int, error) {
	out, err := l.sum().Width(in)
	if err == nil && l.Conv.Shape.Transposed {
		err = fmt.Errorf("layers: a ConvLoRA of the transposed convolution %s: %w", l.Conv.Weight.Name, snug.ErrConfig)
	}
	return out, err
}

// Params implements [Layer].
func (l ConvLoRA) Params(yield func(*Param) bool) { l.sum().Params(yield) }

// Forward implements [Layer].
func (l ConvLoRA) Forward(p *Pass, x *Tensor) *Tensor { return l.sum().Forward(p, x) }

// ForwardSave implements [Layer].
func (l ConvLoRA) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return l.sum().ForwardSave(p, x) }

// Backward implements [Layer].
func (l ConvLoRA) Backward(p *Pass, x *Tensor, s Saved, dy *Tensor) *Tensor {
	return l.sum().Backward(p, x, s, dy)
}

// Merge adds Scale·B·A to the weight of Conv, rounded once to its type, and sets B to 0, so that Conv alone computes the same. The
// error wraps [snug.ErrConfig] for several groups, because A mixes the channels of all groups, and for an A of
// another kernel, and otherwise is one of Width or of the device.
func (l ConvLoRA) Merge() error {
	if missing(l.Conv) {
		return fmt.Errorf("layers: Merge: a ConvLoRA without Conv: %w", snug.ErrConfig)
	}
	if _, err := l.Width(l.Conv.one().XLen()); err != nil {
		return err
	}
	if max(1, l.Conv.Shape.Groups) > 1 {
		return fmt.Errorf("layers: Merge: %s has %d groups, want 1: %w", l.Conv.Weight.Name, l.Conv.Shape.Groups, snug.ErrConfig)
	}
	a, b, rank := l.A.Weight, l.B.Weight, l.A.Shape.Out
	if b.Len() != l.Conv.Shape.Out*rank || l.Conv.Shape.Out*(a.Len()/rank) != l.Conv.Weight.Len() {
		return fmt.Errorf("layers: Merge: %s of %v and %s of %v elements do not go into %s: %w", a.Name, a.Shape, b.Name, b.Shape, l.Conv.Weight.Name, snug.ErrConfig)
	}
	return l.Conv.Weight.With(true, func(w snug.View) error {
		err := amp.MatMul(w, b.Value, a.Value, amp.MatMulOptions{M: l.Conv.Shape.Out, N: a.Len() / rank, K: rank, Into: snug.Into{Alpha: l.Scale, Beta: 1}})
		if err != nil {
			return err
		}
		return multiply(b.Value, b.Len(), 0)
	})
}

// scaled is y = s·x.
type scaled float32

func (s scaled) Width(in int) (int, error)                       { return in, nil }
func (s scaled) Params(func(*Param) bool)                        {}
func (s scaled) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, s, x) }
func (s scaled) cheap()                                          {}

func (s scaled) Forward(p *Pass, x *Tensor) *Tensor {
	y := p.Get(p.width(x))
	p.copyTo(y, x)
	p.Do(func() error { return multiply(y.View, y.Len(), float32(s)) })
	return y
}

func (s scaled) Backward(p *Pass, _ *Tensor, _ Saved, dy *Tensor) *Tensor {
	p.Do(func() error { return multiply(dy.View, dy.Len(), float32(s)) })
	return dy
}
