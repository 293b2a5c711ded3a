package segment

import (
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
)

// graph records the operations of a forward pass, so that they run backward in reverse order. The rows of its pass are prompts; a value
// has so many elements for each, those of several tokens or positions one after the other. It is the saved set of a decoder.
type graph struct {
	p     *layers.Pass
	keeps bool // for a backward pass; else values that are not needed any more are freed with drop
	ops   []*op
}

// value is the result of an operation.
type value struct {
	v, d  *layers.Tensor // and the gradient, nil for 0
	width int            // elements for a prompt
	fixed bool           // no gradient
}

// op is an operation. Its tensors are freed when its backward step is done.
type op struct {
	y    *value
	set  layers.Saved     // of a layer, with its output
	kept []*layers.Tensor // besides y
	back func()           // adds to the gradients of its operands from that of y
}

// Tensors implements [layers.Saved].
func (g *graph) Tensors(list []*layers.Tensor) []*layers.Tensor {
	for _, o := range g.ops {
		if o.set != nil {
			list = o.set.Tensors(list)
		} else {
			list = append(list, o.y.v)
		}
		list = append(list, o.kept...)
	}
	return list
}

// backward runs all operations backward. dy, the gradient of the last one, is the graph's.
func (g *graph) backward(dy *layers.Tensor) {
	g.ops[len(g.ops)-1].y.d = dy
	for len(g.ops) > 0 {
		o := g.ops[len(g.ops)-1]
		o.back()
		if o.set != nil {
			g.p.ReleaseSaved(o.set)
		} else {
			g.p.Put(o.y.v)
		}
		g.p.Put(o.kept...)
		g.p.Put(o.y.d)
		*o.y = value{}
		g.ops = g.ops[:len(g.ops)-1]
	}
}

// add records an operation with a result of its own.
func (g *graph) add(width int, v *layers.Tensor, back func(y *value), kept ...*layers.Tensor) *value {
	y := &value{v: v, width: width}
	if g.keeps {
		g.ops = append(g.ops, &op{y: y, kept: kept, back: func() { back(y) }})
	} else {
		g.p.Put(kept...)
	}
	return y
}

// drop frees values that no operation reads any more, unless the backward pass does.
func (g *graph) drop(list ...*value) {
	for _, x := range list {
		if !g.keeps && !x.fixed {
			g.p.Put(x.v)
			x.v = nil
		}
	}
}

// give adds the gradient d to that of x, and takes d.
func (g *graph) give(x *value, d *layers.Tensor) {
	switch {
	case x.fixed:
		g.p.Put(d)
	case x.d == nil:
		x.d = d
	default:
		g.p.Do(func() error { return fused.Add(x.d.View, x.d.View, d.View) })
		g.p.Put(d)
	}
}

// share adds the gradient d to that of x, and leaves d.
func (g *graph) share(x *value, d *layers.Tensor) {
	if x.fixed {
		return
	}
	if x.d != nil {
		g.p.Do(func() error { return fused.Add(x.d.View, x.d.View, d.View) })
		return
	}
	x.d = g.p.Get(x.width)
	g.p.Do(func() error { return snug.Copy(x.d.View, d.View) })
}

// layer is y = l(x), for a layer whose rows are prompts.
func (g *graph) layer(l layers.Layer, x *value) *value {
	width, _ := l.Width(x.width) // checked when the model was made
	if !g.keeps {
		return &value{v: l.Forward(g.p, x.v), width: width}
	}
	v, set := l.ForwardSave(g.p, x.v)
	y := &value{v: v, width: width}
	g.ops = append(g.ops, &op{y: y, set: set, back: func() {
		g.give(x, l.Backward(g.p, x.v, set, y.d))
		y.d = nil
	}})
	return y
}

// linear is y = x·Wᵀ + b for each token or position.
func (g *graph) linear(l *layers.Linear, x *value) *value {
	p, n := g.p, x.width/l.In
	rows := p.Rows() * n
	v := p.Get(n * l.Out)
	p.Do(func() error {
		err := amp.MatMul(v.View, x.v.View, l.Weight.Value, amp.MatMulOptions{M: rows, N: l.Out, K: l.In, TransB: true})
		if err != nil || l.Bias == nil {
			return err
		}
		return fused.BiasAdd(v.View, v.View, l.Bias.Value)
	})
	return g.add(n*l.Out, v, func(y *value) {
		if l.Weight.Trains {
			p.Do(func() error {
				acc, into, err := p.Gradient(l.Weight)
				if err != nil {
					return err
				}
				return amp.MatMul(acc, y.d.View, x.v.View, amp.MatMulOptions{M: l.Out, N: l.In, K: rows, TransA: true, Into: into})
			})
		}
		if l.Bias != nil {
			g.sum(l.Bias, func() snug.View { return y.d.View })
		}
		if beta := float32(1); !x.fixed {
			if x.d == nil {
				x.d, beta = p.Get(x.width), 0
			}
			p.Do(func() error {
				return amp.MatMul(x.d.View, y.d.View, l.Weight.Value, amp.MatMulOptions{M: rows, N: l.In, K: l.Out, Into: snug.Into{Alpha: 1, Beta: beta}})
			})
		}
		p.Done(l.Weight) // which is not read any more
	})
}

// sum adds the sum of rows of gradients to the gradient of a parameter with the elements of a row. Without rows it adds 0.
func (g *graph) sum(w *layers.Param, rows func() snug.View) {
	if !w.Trains {
		return
	}
	p := g.p
	p.Do(func() error {
		acc, into, err := p.Gradient(w)
		if err != nil {
			return err
		}
		d := rows()
		if d.Len() == 0 {
			d = snug.ViewOf(make([]float32, w.Len()))
		}
		ws, err := p.Workspace(fused.BiasAddWorkspaceLen(d.Len()/w.Len(), w.Len()))
		if err != nil {
			return err
		}
		return fused.BiasAddBackward(acc, d, into, ws)
	})
	p.Done(w)
}

// plus is y = a + b.
func (g *graph) plus(a, b *value) *value {
	return g.plusIn(g.p.Get(b.width), a, b)
}

// plusOver is y = a + b in the memory of b, a result of linear that nothing else reads.
func (g *graph) plusOver(a, b *value) *value {
	y := g.plusIn(b.v, a, b)
	b.v = nil
	return y
}

func (g *graph) plusIn(v *layers.Tensor, a, b *value) *value {
	g.p.Do(func() error { return fused.Add(v.View, b.v.View, a.v.View) })
	return g.add(b.width, v, func(y *value) {
		g.share(a, y.d)
		g.give(b, y.d)
		y.d = nil
	})
}

// plusAll is y = x + c for each prompt.
func (g *graph) plusAll(x *value, c snug.View) *value {
	p := g.p
	v := p.Get(x.width)
	p.Do(func() error {
		for i := range p.Rows() {
			if err := fused.Add(rowsOf(v, i, x.width), rowsOf(x.v, i, x.width), c); err != nil {
				return err
			}
		}
		return nil
	})
	return g.add(x.width, v, func(y *value) {
		g.give(x, y.d)
		y.d = nil
	})
}

// rowsOf returns row i of a tensor.
func rowsOf(t *layers.Tensor, i, width int) snug.View {
	return snug.ViewOf(t.Float32s()[i*width:][:width])
}

// gelu is GELU of rows of so many channels.
func (g *graph) gelu(x *value, channels int) *value {
	p, none := g.p, snug.ViewOf(make([]float32, channels))
	v := p.Get(x.width)
	p.Do(func() error { return fused.BiasGELUErf(v.View, x.v.View, none) })
	return g.add(x.width, v, func(y *value) {
		frozen := snug.ViewOf([]float32(nil))
		p.Do(func() error {
			return fused.BiasGELUErfBackward(y.d.View, frozen, y.d.View, x.v.View, none, snug.Into{}, frozen)
		})
		g.give(x, y.d)
		y.d = nil
	})
}

// attention is softmax(q·kᵀ/√dim)·v, for each prompt by itself.
func (g *graph) attention(q, k, v *value, heads, width int) *value {
	p := g.p
	c := attention.SequenceMajor(attention.Options{Batch: p.Rows(), Heads: heads, SeqQ: q.width / width, SeqK: k.width / width, Dim: width / heads})
	out, lse := p.Get(q.width), (*layers.Tensor)(nil)
	sums := snug.ViewOf([]float32(nil))
	if g.keeps {
		lse = p.Stat(heads * c.SeqQ)
		sums = lse.View
	}
	p.Do(func() error { return attention.Forward(out.View, sums, q.v.View, k.v.View, v.v.View, c) })
	return g.add(q.width, out, func(y *value) {
		dq, dk, dv := p.Get(q.width), p.Get(k.width), p.Get(v.width)
		p.Do(func() error {
			ws, err := p.Workspace(c.WorkspaceLen())
			if err != nil {
				return err
			}
			return attention.Backward(dq.View, dk.View, dv.View, y.d.View, q.v.View, k.v.View, v.v.View, y.v.View, lse.View, c, ws)
		})
		g.give(q, dq)
		g.give(k, dk)
		g.give(v, dv)
	}, lse)
}

// pick is token i of each prompt.
func (g *graph) pick(x *value, i, width int) *value {
	p := g.p
	v := p.Get(width)
	p.Do(func() error {
		for b := range p.Rows() {
			copy(v.Float32s()[b*width:][:width], x.v.Float32s()[b*x.width+i*width:])
		}
		return nil
	})
	return g.add(width, v, func(y *value) {
		fresh := x.d == nil
		if fresh {
			x.d = p.Get(x.width)
		}
		p.Do(func() error {
			if fresh {
				clear(x.d.Float32s())
			}
			for b := range p.Rows() {
				at := snug.ViewOf(x.d.Float32s()[b*x.width+i*width:][:width])
				if err := fused.Add(at, at, rowsOf(y.d, b, width)); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

// wave writes the sines and cosines of a point, whose coordinates are from 0 to 1, for waves [2, n]: Fourier features of random
// frequencies (Tancik et al. 2020, arXiv:2006.10739).
func wave(to, waves []float32, x, y float64) {
	n := len(waves) / 2
	for i := range n {
		at := 2 * math.Pi * ((2*x-1)*float64(waves[i]) + (2*y-1)*float64(waves[n+i]))
		sin, cos := math.Sincos(at)
		to[i], to[n+i] = float32(sin), float32(cos)
	}
}
