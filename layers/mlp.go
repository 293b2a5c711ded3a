package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
)

// MLP is y = x + post(down(act(up·h + b))), or with a gate y = x + post(down(act(gate·h)·up·h)), for h = norm(x). The zero
// Norm and Post are the identity. It keeps the inputs of the activation; the backward step computes the norm and the
// activation again, which is cheap, and writes the gradients of gate and up over them.
//
// In tiles, see Options.Tiles, it keeps its output alone, and holds besides what one tile takes. The idea is from Bekman
// et al. 2025, arXiv:2506.13996. The last bits of its parameters' gradients depend on the number of tiles, and nothing else.
type MLP struct {
	Norm     Norm
	In, Down []Linear // In: gate and up, or up alone; Down: one
	// Joined says that In is one layer which makes gate and up side by side, as in Phi-3 and GLM-4. They are then copied apart,
	// and so are their gradients: row by row on devices other than the CPU, too, where Joined is slow.
	Joined bool
	// GateFactor multiplies the gate before the activation, as in Falcon-H1; 0 stands for 1.
	GateFactor float32
	// Bias is of up without a gate, whose bias is a part of the activation.
	Bias       *Param
	Activation Activation
	Post       Norm
	// Sparsity, unless 0, is the share of each row of gate that becomes 0, if its elements are normally distributed: gate is then
	// max(gate − c, 0) for c = mean + deviation·Φ⁻¹(Sparsity) of the row, as in Gemma 3n. It takes two In, and works on the CPU.
	Sparsity float64
}

// NewMLP returns an MLP with an RMSNorm, and with a gate if gated says so, without biases. Its parameters are name.norm, name.gate,
// name.up and name.down, each with .weight; name.down begins as 0.
func NewMLP(name string, width, hidden int, a Activation, gated bool) *MLP {
	b := &MLP{Norm: *NewRMSNorm(name+".norm", width), Activation: a, Down: []Linear{*newLast(name+".down", hidden, width)}}
	if gated {
		b.In = append(b.In, *NewLinear(name+".gate", width, hidden, false))
	}
	b.In = append(b.In, *NewLinear(name+".up", width, hidden, false))
	return b
}

// Width implements [Layer].
func (b *MLP) Width(in int) (int, error) {
	switch {
	case b == nil || len(b.In) < 1 || len(b.In) > 2 || len(b.Down) != 1:
		return 0, fmt.Errorf("layers: an MLP without In or Down: %w", snug.ErrConfig)
	case !b.checkSparsity():
		return 0, fmt.Errorf("layers: an MLP of %d matrices has a Sparsity of %v, want 0 to 1 with gate and up apart: %w", len(b.In), b.Sparsity, snug.ErrConfig)
	case b.Joined && len(b.In) != 1:
		return 0, fmt.Errorf("layers: a Joined MLP of %d matrices, want one for gate and up: %w", len(b.In), snug.ErrConfig)
	case !b.gated() && b.Activation.plain == nil || b.gated() && b.Activation.gated == nil:
		return 0, fmt.Errorf("layers: the Activation of an MLP does not go with %d matrices before it: %w", len(b.In), snug.ErrConfig)
	case b.GateFactor-b.GateFactor != 0 || b.GateFactor != 0 && !b.gated():
		return 0, fmt.Errorf("layers: the GateFactor of an MLP is %v, want a number, and 0 without a gate: %w", b.GateFactor, snug.ErrConfig)
	case b.Bias != nil && b.Bias.Len() != b.Down[0].In:
		return 0, fmt.Errorf("layers: the Bias of an MLP has %d elements, want %d: %w", b.Bias.Len(), b.Down[0].In, snug.ErrConfig)
	}
	inner := b.Down[0].In
	if b.Joined {
		inner *= 2
	}
	for i := range b.In {
		if b.In[i].Out != inner {
			return 0, fmt.Errorf("layers: an MLP from %d inner elements to %d: %w", b.In[i].Out, inner, snug.ErrConfig)
		}
	}
	return in, blockWidth(in, b.Norm, b.Post, b.In, b.Down[0], b.Down[0].In)
}

type mlpSaved struct {
	blockSaved
	gate, up *Tensor
}

// Tensors implements [Saved].
func (s *mlpSaved) Tensors(list []*Tensor) []*Tensor {
	return append(s.blockSaved.Tensors(list), s.gate, s.up)
}

// gated reports whether there is a gate.
func (b *MLP) gated() bool { return b.Joined || len(b.In) == 2 }

// project computes gate and up from the normalized input; gate is nil if there is none.
func (b *MLP) project(p *Pass, s Stats, x *Tensor) (gate, up *Tensor) {
	h := p.Get(b.In[0].In)
	b.Norm.Compute(p, h, s, x)
	if b.Joined {
		both := p.Get(b.In[0].Out)
		b.In[0].compute(p, both, h, 0)
		p.Put(h)
		n := b.Down[0].In
		gate, up = p.Get(n), p.Get(n)
		copyColumns(p, gate, 0, n, both, 0, 2*n, n)
		copyColumns(p, up, 0, n, both, n, 2*n, n)
		p.Put(both)
		b.scaleGate(p, gate)
		return gate, up
	}
	if b.gated() {
		gate = p.Get(b.In[0].Out)
		b.In[0].compute(p, gate, h, 0)
		b.scaleGate(p, gate)
	}
	l := &b.In[len(b.In)-1]
	up = p.Get(l.Out)
	l.compute(p, up, h, 0)
	p.Put(h)
	return gate, up
}

// scaleGate multiplies the gate, or its gradient, by the factor.
func (b *MLP) scaleGate(p *Pass, gate *Tensor) {
	if b.GateFactor != 0 && b.GateFactor != 1 {
		p.Do(func() error { return multiply(gate.View, gate.Len(), b.GateFactor) })
	}
}

// Forward implements [Layer].
func (b *MLP) Forward(p *Pass, x *Tensor) *Tensor {
	if p.refuses(b, x) {
		return &Tensor{}
	}
	if p.tiled() {
		y := p.Get(b.Down[0].Out)
		b.forwardTiles(p, y, x)
		return y
	}
	return b.forward(p, nil, x, x)
}

// forward computes y = x + mlp(from), in y unless that is nil, and keeps nothing.
func (b *MLP) forward(p *Pass, y, x, from *Tensor) *Tensor {
	gate, up := b.project(p, Stats{}, from)
	b.cut(p, gate)
	b.Activation.compute(p, up, gate, up, b.Bias)
	p.Put(gate)
	if y == nil {
		y = p.Get(b.Down[0].Out)
	}
	leave(p, y, x, up, &b.Down[0], b.Post, nil)
	p.Put(up)
	return y
}

// Resave implements [Resaver]. It leaves out the activation and the last product, unless its norm needs them. With tiles
// it leaves out all.
func (b *MLP) Resave(p *Pass, x *Tensor) Saved { return b.kept(p, x, false) }

// ForwardSave implements [Layer].
func (b *MLP) ForwardSave(p *Pass, x *Tensor) (*Tensor, Saved) {
	s := b.kept(p, x, true)
	return s.y, s
}

// kept returns the saved set, whose output has its values if whole says so.
func (b *MLP) kept(p *Pass, x *Tensor, whole bool) *mlpSaved {
	if p.refuses(b, x) {
		return &mlpSaved{blockSaved: blockSaved{output: output{&Tensor{}}}}
	}
	s := newSaved[mlpSaved](p)
	s.y = p.Get(b.Down[0].Out)
	switch {
	case !p.tiled():
		b.save(p, s, x, x, whole)
	case whole:
		b.forwardTiles(p, s.y, x)
	}
	return s
}

// save computes the saved set of mlp(from), and the output, which is added to x, if whole says so, or the norm after it needs it.
func (b *MLP) save(p *Pass, s *mlpSaved, x, from *Tensor, whole bool) {
	s.norm = b.Norm.NewStats(p, 1)
	s.keepPost(p, b.Post, b.Down[0].Out)
	s.gate, s.up = b.project(p, s.norm, from)
	if !whole && b.Post.none() {
		return
	}
	act, gate := p.Get(b.Down[0].In), b.open(p, s.gate)
	b.Activation.compute(p, act, gate, s.up, b.Bias)
	b.shut(p, gate, s.gate)
	leave(p, s.y, x, act, &b.Down[0], b.Post, &s.blockSaved)
	p.Put(act)
}

// forwardTiles computes y tile by tile.
func (b *MLP) forwardTiles(p *Pass, y, x *Tensor) {
	p.eachTile(func() {
		x := p.rowsOf(&p.tile.x, x)
		b.forward(p, p.rowsOf(&p.tile.y, y), x, x)
	})
}

// Backward implements [Layer]. It turns dy, in place, into the gradient of x.
func (b *MLP) Backward(p *Pass, x *Tensor, kept Saved, dy *Tensor) *Tensor {
	if p.refuses(b, x) {
		return dy
	}
	if !p.tiled() {
		b.backward(p, x, kept.(*mlpSaved), dy, dy, 1)
		return dy
	}
	p.eachTile(func() {
		x, d := p.rowsOf(&p.tile.x, x), p.rowsOf(&p.tile.d, dy)
		s := newSaved[mlpSaved](p)
		if !b.Post.none() {
			s.y = p.Get(b.Down[0].Out)
		}
		b.save(p, s, x, x, false)
		p.Put(s.y)
		s.y = nil
		b.backward(p, x, s, d, d, 1)
		p.ReleaseSaved(s)
	})
	return dy
}

// backward computes dx = beta·dx + the gradient of x from the gradient d of what the block adds; dx may be d.
func (b *MLP) backward(p *Pass, x *Tensor, s *mlpSaved, d, dx *Tensor, beta float32) {
	act, gate := p.Get(b.Down[0].In), b.open(p, s.gate)
	if b.Down[0].Adapter != nil || b.Down[0].Weight.Trains {
		b.Activation.compute(p, act, gate, s.up, b.Bias)
	}
	dout := leaveBackward(p, d, &b.Down[0], b.Post, &s.blockSaved)
	dact := linearBackward(p, act, b.Down, dout) // the gradient of the activation's output
	if dout != d {
		p.Put(dout)
	}
	b.Activation.gradients(p, dact, gate, s.up, b.Bias)
	p.Put(dact)
	b.cutBackward(p, s.gate, gate)
	b.shut(p, gate, s.gate)
	if b.gated() {
		b.scaleGate(p, s.gate)
	}
	var both *Tensor
	if b.Joined {
		n := b.Down[0].In
		both = p.Get(2 * n)
		copyColumns(p, both, 0, 2*n, s.gate, 0, n, n)
		copyColumns(p, both, n, 2*n, s.up, 0, n, n)
	}
	h := p.Get(b.In[0].In)
	if anyTrains(b.In) {
		b.Norm.Compute(p, h, Stats{}, x)
	}
	var dh *Tensor
	switch {
	case both != nil:
		dh = linearBackward(p, h, b.In, both)
		p.Put(both)
	case s.gate == nil:
		dh = linearBackward(p, h, b.In, s.up)
	default:
		dh = linearBackward(p, h, b.In, s.gate, s.up)
	}
	b.Norm.Gradients(p, dx, dh, s.norm, x, beta)
	p.Put(dh)
}

// Params implements [Layer].
func (b *MLP) Params(yield func(*Param) bool) {
	yieldAll(yield, b.Norm.list(), listOf(b.In), []*Param{b.Bias}, listOf(b.Down), b.Post.list())
}
