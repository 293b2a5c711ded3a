package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/qlora"
)

// Linear is y = x·Wᵀ + b, for x of [rows, In] and y of [rows, Out].
type Linear struct {
	Weight, Bias *Param // [Out, In] and [Out]; Bias is nil for none
	In, Out      int
	Transposed   bool          // Weight is [In, Out], as in GPT-2
	Frozen       *qlora.Linear // product by a Weight that does not train and has Quantized, else nil
	Adapter      *Adapter      // nil for none
}

// NewLinear returns a Linear with the parameter name.weight, which begins normally distributed with a deviation of 1/√in,
// and with bias name.bias, which begins as 0.
func NewLinear(name string, in, out int, bias bool) *Linear {
	l := &Linear{Weight: newParam(name+".weight", deviation(in), out, in), In: in, Out: out}
	if bias {
		l.Bias = newParam(name+".bias", 0, out)
	}
	return l
}

// newLast returns a Linear whose weight begins as 0, so that a new block is the identity.
func newLast(name string, in, out int) *Linear {
	l := NewLinear(name, in, out, false)
	l.Weight.deviation = 0
	return l
}

// compute computes y = x·Wᵀ + b + beta·y, with the adapter if there is one.
func (l *Linear) compute(p *Pass, y, x *Tensor, beta float32) {
	scales := l.Adapter != nil && l.Adapter.DoRA != nil
	if scales {
		l.scaled(p, y, x, beta)
	} else {
		l.product(p, y, x, beta)
	}
	if l.Bias != nil {
		p.Do(func() error { return fused.BiasAdd(y.View, y.View, l.Bias.Value) })
	}
	if l.Adapter != nil && !scales {
		l.Adapter.compute(p, y, x)
	}
}

// product computes y = x·w + beta·y.
func (l *Linear) product(p *Pass, y, x *Tensor, beta float32) {
	p.macs += l.work(p)
	p.Do(func() error {
		if l.Frozen != nil {
			if used := p.Batch.Used; used > 0 && p.rows == p.Batch.Rows {
				return l.Frozen.ForwardUsed(used, y.View, x.View, beta)
			}
			return l.Frozen.Forward(y.View, x.View, beta)
		}
		return l.Weight.With(false, func(w snug.View) error {
			return amp.MatMul(y.View, x.View, w, amp.MatMulOptions{
				M: p.rows, N: l.Out, K: l.In, TransB: !l.Transposed, Into: snug.Into{Alpha: 1, Beta: beta}})
		})
	})
}

// inputGradient computes dx = dy·W + beta·dx, without the adapter's part.
func (l *Linear) inputGradient(p *Pass, dx, dy *Tensor, beta float32) {
	p.macs += l.work(p)
	p.Do(func() error {
		if l.Frozen != nil {
			return l.Frozen.Backward(dx.View, dy.View, beta)
		}
		return l.Weight.With(false, func(w snug.View) error {
			return amp.MatMul(dx.View, dy.View, w, amp.MatMulOptions{
				M: p.rows, N: l.In, K: l.Out, TransB: l.Transposed, Into: snug.Into{Alpha: 1, Beta: beta}})
		})
	})
}

func (l *Linear) work(p *Pass) float64 { return float64(p.rows) * float64(l.In) * float64(l.Out) }

// Width implements [Layer].
func (l *Linear) Width(in int) (int, error) {
	switch {
	case l == nil || l.Weight == nil || l.In < 1 || l.Out < 1 || l.Weight.Len() != l.In*l.Out:
		return 0, fmt.Errorf("layers: a Linear without Weight, or of other sizes: %w", snug.ErrConfig)
	case l.Bias != nil && l.Bias.Len() != l.Out:
		return 0, fmt.Errorf("layers: the Bias of %s has %d elements, want %d: %w", l.Weight.Name, l.Bias.Len(), l.Out, snug.ErrConfig)
	case l.Frozen != nil && (l.Weight.Trains || l.Weight.Quantized == nil):
		return 0, fmt.Errorf("layers: %s has a Frozen product, and trains or has no Quantized: %w", l.Weight.Name, snug.ErrConfig)
	case l.Adapter != nil && !l.Adapter.whole():
		return 0, fmt.Errorf("layers: the Adapter of %s has no LoRA, or no parameters with the Values A and B: %w", l.Weight.Name, snug.ErrConfig)
	}
	return l.Out, widthOf(l.Weight.Name, in, l.In)
}

// linearBackward adds the parameters' gradients of layers that share their input x, and returns the gradient of x. It
// takes x, whose memory is the caller's no more, and writes the gradient over it when the last of them has read x. It
// writes into a new tensor and frees x with adapters that train their A, which read x to the end, and where it is less
// than the gradients that a window which holds one at a time would hold until then.
func linearBackward(p *Pass, x *Tensor, layers []Linear, dy ...*Tensor) *Tensor {
	apart, others := false, int64(0)
	for i, l := range layers {
		if apart = apart || l.Adapter != nil && !l.Adapter.FrozenA; i > 0 && l.Weight.Trains {
			others += 4 * int64(l.In) * int64(l.Out)
		}
	}
	one, _ := p.Window.(accum.OneHolder) // which holds a gradient only until it is complete
	apart = apart || one != nil && one.HoldsOne() && x.Bytes() < others
	dx := x
	if apart {
		dx = p.Get(layers[0].In)
	} else {
		for i := range layers {
			layers[i].weightGradients(p, x, dy[i])
		}
	}
	us := inner(p, x, layers)
	for i := range layers {
		l := &layers[i]
		if apart {
			l.weightGradients(p, x, dy[i])
		}
		l.inputGradients(p, dx, dy[i], x, us[i], min(1, float32(i)))
		p.Done(l.Weight, l.Bias) // this backward pass does not read them again
	}
	if apart {
		p.Put(x)
	}
	return dx
}

// inputGradients computes dx = beta·dx + the gradient of a layer's input x. With an adapter that trains its A dx is not
// x; u is the inner product of one whose A is frozen, else nil.
func (l *Linear) inputGradients(p *Pass, dx, dy, x, u *Tensor, beta float32) {
	switch {
	case l.Adapter == nil:
		l.inputGradient(p, dx, dy, beta)
	case l.Adapter.DoRA != nil:
		l.scaledBackward(p, dx, dy, x, beta)
	default:
		l.inputGradient(p, dx, dy, beta)
		l.Adapter.backward(p, dx, dy, x, u)
	}
}

// Forward implements [Layer].
func (l *Linear) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(l, x) {
		return &Tensor{}
	}
	y := p.Get(l.Out)
	l.compute(p, y, x, 0)
	return y
}

// ForwardSave implements [Layer]. It keeps the output alone.
func (l *Linear) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) { return saveOutput(p, l, x) }

// Backward implements [Layer].
func (l *Linear) Backward(p *Pass, x *Tensor, _ Saved, dy *Tensor) *Tensor {
	if p.refuses(l, x) {
		return dy
	}
	dx := p.Get(l.In)
	l.weightGradients(p, x, dy)
	layers := []Linear{*l}
	l.inputGradients(p, dx, dy, x, inner(p, x, layers)[0], 0)
	p.Done(l.Weight, l.Bias)
	p.Put(dy)
	return dx
}

// Params implements [Layer].
func (l *Linear) Params(yield func(*Param) bool) { yieldAll(yield, l.list()) }

// weightGradients adds to the gradients of the weight and the bias.
func (l *Linear) weightGradients(p *Pass, x, dy *Tensor) {
	if l.Weight.Trains {
		p.macs += l.work(p)
		p.Do(func() error {
			acc, into, err := p.Gradient(l.Weight)
			if err != nil {
				return err
			}
			g := amp.MatMulOptions{M: l.Out, N: l.In, K: p.rows, TransA: true, Into: into}
			if l.Transposed {
				g.M, g.N = l.In, l.Out
				return amp.MatMul(acc, x.View, dy.View, g)
			}
			return amp.MatMul(acc, dy.View, x.View, g)
		})
	}
	if l.Bias != nil && l.Bias.Trains {
		p.Do(func() error {
			acc, into, err := p.Gradient(l.Bias)
			if err != nil {
				return err
			}
			ws, err := p.Workspace(fused.BiasAddWorkspaceLen(p.rows, l.Out))
			if err != nil {
				return err
			}
			return fused.BiasAddBackward(acc, dy.View, into, ws)
		})
	}
}

// anyTrains reports whether a parameter of the layers trains.
func anyTrains(layers []Linear) bool {
	for i := range layers {
		if l := &layers[i]; l.Adapter != nil || l.Weight.Trains || l.Bias != nil && l.Bias.Trains {
			return true
		}
	}
	return false
}
