package transformer

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/qlora"
)

// This file has DoRA: y = c ⊙ (x·Wᵀ + s·(x·Aᵀ)·Bᵀ), where c makes the magnitudes the norms of the rows of W + s·B·A.
// The gradient of the magnitudes needs the sum in brackets. The backward step computes it again, with one more product
// for each adapted matrix, so that no stage keeps it.

// makeMagnitudes makes the DoRA of each adapter, and sets the magnitudes of fresh adapters to the norms of the rows of
// their matrix.
func (m *Model) makeMagnitudes() error {
	if !m.adapters.DoRA {
		return nil
	}
	for _, l := range m.layers {
		if l.adapter == nil {
			continue
		}
		if err := m.makeMagnitude(l); err != nil {
			return fmt.Errorf("%s: %w", l.weight.Name, err)
		}
	}
	if m.dense != nil {
		m.free = append(m.free, m.dense.Close)
	}
	return nil
}

func (m *Model) makeMagnitude(l *linear) error {
	a := l.adapter
	matrix, err := m.matrixOf(l)
	if err != nil {
		return err
	}
	if m.options.Adapter != nil {
		if err := matrix.Norms(a.Magnitude, nil); err != nil {
			return err
		}
	}
	if a.dora, err = qlora.NewDoRA(matrix, a.LoRA); err != nil {
		return err
	}
	m.free, m.weightBytes = append(m.free, a.dora.Close), m.weightBytes+2*4*int64(a.Out)
	return nil
}

// matrixOf returns the matrix of a layer. Matrices in floats share a tile.
func (m *Model) matrixOf(l *linear) (_ qlora.Matrix, err error) {
	switch {
	case l.frozen != nil:
		return l.frozen, nil
	case l.weight.paged:
		return nil, fmt.Errorf("DoRA takes matrices in floats from memory, and the option PageFloats puts them in pages: %w", snug.ErrConfig)
	case m.dense != nil:
		return m.dense.Share(l.weight.Value, l.out, l.in, l.conv)
	}
	m.dense, err = qlora.NewDense(l.weight.Value, l.out, l.in, l.conv)
	return m.dense, err
}

// scaled computes y = beta·y + the product of a layer with DoRA. It computes the norms once in a call, because the
// parameters do not change before the norms are last used.
func (o *ops) scaled(y, x *tensor, l *linear, beta float32) {
	a, h := l.adapter, y
	if beta != 0 {
		h = o.get(l.out)
	}
	u, work := o.get(a.Rank), o.dropped(a)
	o.do(func() error {
		if a.updated != o.calls {
			if err := a.dora.Update(); err != nil {
				return err
			}
			a.updated = o.calls
		}
		return a.dora.Forward(h.View, h.View, u.View, x.View, o.draw(a, work))
	})
	o.pool.put(u, work)
	if h != y {
		o.do(func() error { return fused.Add(y.View, y.View, h.View) })
		o.pool.put(h)
	}
}

// scaledBackward computes the gradients of scaled: dx = beta·dx + the gradient of x, and those of the parameters.
func (o *ops) scaledBackward(dx, dy, x *tensor, l *linear, beta float32) {
	a := l.adapter
	u, du, h, work := o.get(a.Rank), o.get(a.Rank), o.get(l.out), o.dropped(a)
	o.do(func() error {
		draw := o.draw(a, work)
		if err := a.dora.Inner(h.View, u.View, x.View, draw); err != nil {
			return err
		}
		g, err := o.adapterGradients(a)
		if err != nil {
			return err
		}
		none := part(dx.View, 0, 0) // a product without inner columns multiplies dx by beta, and adds nothing
		if err := amp.MatMul(dx.View, none, none, amp.MatMulOptions{M: o.pool.rows, N: l.in, Into: snug.Into{Beta: beta}}); err != nil {
			return err
		}
		return a.dora.Backward(dx.View, du.View, dy.View, h.View, u.View, x.View, g, draw)
	})
	o.pool.put(u, du, h, work)
	o.done(a.a, a.b, a.m)
}
