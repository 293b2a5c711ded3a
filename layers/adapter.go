package layers

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/qlora"
)

// Adapter is the adapter of a [Linear], a LoRA, DoRA or VeRA of package qlora, with its parameters.
type Adapter struct {
	*qlora.LoRA
	ParamA, ParamB, ParamM *Param      // their Values are A, B and Magnitude of the LoRA; ParamM is nil without DoRA
	DoRA                   *qlora.DoRA // nil without DoRA
	VeRA                   *qlora.VeRA // else nil; the values of ParamA and ParamB are its vectors d and b
	Number                 uint64      // of the adapter in its model, below 2^16, which determines its dropout

	updated uint64 // Number of the pass that computed the norms of DoRA
}

// whole reports whether an adapter has its parameters.
func (a *Adapter) whole() bool {
	return a.LoRA != nil && a.ParamA != nil && a.ParamB != nil && (a.VeRA != nil || a.ParamA.Value == a.A && a.ParamB.Value == a.B)
}

// Expand makes the matrices of an adapter of VeRA.
func (a *Adapter) Expand() error {
	if a.VeRA == nil {
		return nil
	}
	return a.VeRA.Expand(a.LoRA, a.ParamA.Value, a.ParamB.Value)
}

// compute adds the adapter's part to y.
func (a *Adapter) compute(p *Pass, y, x *Tensor) {
	u, work := p.Get(a.Rank), a.dropped(p)
	p.Do(func() error {
		if err := a.Expand(); err != nil {
			return err
		}
		return a.Forward(y.View, u.View, x.View, a.draw(p, work))
	})
	p.Put(u, work)
}

// backward adds the adapter's part to dx, and its gradients to the window. u, unless nil, is the inner product of
// an adapter whose A is frozen, which does not read x.
func (a *Adapter) backward(p *Pass, dx, dy, x, u *Tensor) {
	if u != nil {
		a.frozenBackward(p, dx, dy, u)
		return
	}
	u, du, work := p.Get(a.Rank), p.Get(a.Rank), a.dropped(p)
	p.Do(func() error {
		draw := a.draw(p, work)
		if err := a.Down(u.View, x.View, draw); err != nil {
			return err
		}
		g, err := a.gradients(p)
		if err != nil {
			return err
		}
		return a.Backward(dx.View, du.View, dy.View, u.View, x.View, g, draw)
	})
	p.Put(u, du, work)
	p.Done(a.ParamA, a.ParamB)
}

// inner computes x·Aᵀ of the adapters of layers that share x, whose A are frozen, or returns nothing.
func inner(p *Pass, x *Tensor, layers []Linear) (us [4]*Tensor) {
	for i := range layers {
		a := layers[i].Adapter
		if a == nil || !a.FrozenA {
			continue
		}
		u, work := p.Get(a.Rank), a.dropped(p)
		p.Do(func() error {
			if err := a.Expand(); err != nil {
				return err
			}
			return a.Down(u.View, x.View, a.draw(p, work))
		})
		p.Put(work)
		us[i] = u
	}
	return us
}

// frozenBackward is backward from u in place of x, and frees u.
func (a *Adapter) frozenBackward(p *Pass, dx, dy, u *Tensor) {
	du, work := p.Get(a.Rank), a.dropped(p)
	p.Do(func() error {
		g, err := a.gradients(p)
		if err != nil {
			return err
		}
		if a.VeRA == nil {
			return a.Backward(dx.View, du.View, dy.View, u.View, snug.View{}, g, a.draw(p, work))
		}
		if err := a.Expand(); err != nil {
			return err
		}
		if err := a.Backward(dx.View, du.View, dy.View, u.View, snug.View{}, a.VeRA.Grads(a.LoRA), a.draw(p, work)); err != nil {
			return err
		}
		return a.VeRA.Reduce(g.A, g.B, a.ParamA.Value, a.ParamB.Value, g.Into, a.LoRA)
	})
	p.Put(u, du, work)
	p.Done(a.ParamA, a.ParamB)
}

// gradients returns the accumulators of an adapter.
func (a *Adapter) gradients(p *Pass) (g qlora.Grads, err error) {
	var before *Param
	for _, w := range [...]struct {
		*Param
		acc *snug.View
	}{{a.ParamA, &g.A}, {a.ParamB, &g.B}, {a.ParamM, &g.Magnitude}} {
		if w.Param == nil || !w.Trains {
			continue
		}
		acc, into, err := p.Gradient(w.Param)
		if err != nil {
			return g, err
		}
		if *w.acc = acc; before != nil && into != g.Into {
			return g, fmt.Errorf("the window's Into of %s and of %s differ: %w", before.Name, w.Name, snug.ErrConfig)
		}
		g.Into, before = into, w.Param
	}
	return g, nil
}

// dropped returns the workspace of an adapter's dropout, nil where nothing is dropped.
func (a *Adapter) dropped(p *Pass) *Tensor {
	if a.Dropout == 0 || p.Window == nil && !p.counts {
		return nil
	}
	return p.Get(a.In)
}

func (a *Adapter) draw(p *Pass, work *Tensor) qlora.Dropout {
	if work == nil {
		return qlora.Dropout{}
	}
	first := uint64(p.tile.lo) * uint64(a.In)
	return qlora.Dropout{Draw: amp.Draw{Seed: p.Seed, Tensor: p.Batch.Draw<<16 + a.Number, First: first}, Work: work.View}
}

// The rest of this file is DoRA: y = c ⊙ (x·Wᵀ + s·(x·Aᵀ)·Bᵀ), where c makes the magnitudes the norms of the rows of
// W + s·B·A. The gradient of the magnitudes needs the sum in brackets. The backward step computes it again, with one
// more product for each adapted matrix, so that no layer keeps it.

// scaled computes y = beta·y + the product of a layer with DoRA. It computes the norms once for a number of the pass,
// because the parameters do not change before the norms are last used.
func (l *Linear) scaled(p *Pass, y, x *Tensor, beta float32) {
	a, h := l.Adapter, y
	if beta != 0 {
		h = p.Get(l.Out)
	}
	u, work := p.Get(a.Rank), a.dropped(p)
	p.Do(func() error {
		if a.updated != p.Number {
			if err := a.DoRA.Update(); err != nil {
				return err
			}
			a.updated = p.Number
		}
		return a.DoRA.Forward(h.View, h.View, u.View, x.View, a.draw(p, work))
	})
	p.Put(u, work)
	if h != y {
		p.Do(func() error { return fused.Add(y.View, y.View, h.View) })
		p.Put(h)
	}
}

// scaledBackward is the backward pass of scaled. It sets dx to beta·dx plus the gradient of x, and computes the gradients of
// the parameters.
func (l *Linear) scaledBackward(p *Pass, dx, dy, x *Tensor, beta float32) {
	a := l.Adapter
	u, du, h, work := p.Get(a.Rank), p.Get(a.Rank), p.Get(l.Out), a.dropped(p)
	p.Do(func() error {
		draw := a.draw(p, work)
		if err := a.DoRA.Inner(h.View, u.View, x.View, draw); err != nil {
			return err
		}
		g, err := a.gradients(p)
		if err != nil {
			return err
		}
		if err := multiply(dx.View, p.rows*l.In, beta); err != nil {
			return err
		}
		return a.DoRA.Backward(dx.View, du.View, dy.View, h.View, u.View, x.View, g, draw)
	})
	p.Put(u, du, h, work)
	p.Done(a.ParamA, a.ParamB, a.ParamM)
}

// multiply multiplies n elements by beta, as a matrix product whose inner dimension is 0. With a beta of 0 it does not read
// them.
func multiply(v snug.View, n int, beta float32) error {
	none := part(v, 0, 0)
	return amp.MatMul(v, none, none, amp.MatMulOptions{M: 1, N: n, Into: snug.Into{Beta: beta}})
}
