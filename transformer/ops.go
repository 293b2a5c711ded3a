package transformer

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/qlora"
)

// ops calls the operations of one stage and keeps the first error; after an error it does
// nothing. Activations are [rows, width] in the type of the weights.
type ops struct {
	*Model
	err  error
	tile tile
}

var none32 = snug.ViewOf([]float32(nil))

// stage begins the operations of a stage.
func (m *Model) stage() *ops {
	m.ops.err, m.ops.tile = nil, tile{}
	return &m.ops
}

func (o *ops) do(call func() error) {
	if o.err = cmp.Or(o.err, o.pool.err); o.err == nil {
		o.err = call()
	}
}

// get returns an activation of the given width.
func (o *ops) get(width int) *tensor { return o.pool.get(o.dtype, width) }

// stat returns float32 numbers of rows.
func (o *ops) stat(width int) *tensor { return o.pool.get(snug.F32, width) }

// copyTo computes y = x. The next product adds to y.
func (o *ops) copyTo(y, x *tensor) {
	o.do(func() error { return snug.Copy(y.View, x.View) })
}

// norm has the parameters of a LayerNorm, or of an RMSNorm, whose bias is nil.
type norm struct{ weight, bias *Param }

// stats has the statistics of rows that a norm keeps for its backward step. Only a LayerNorm has a mean.
type stats struct{ mean, rstd *tensor }

func (o *ops) stats(n norm) (s stats) {
	if s.rstd = o.stat(1); n.bias != nil {
		s.mean = o.stat(1)
	}
	return s
}

// gamma returns the factors of a norm: w, or 1+w in a vector that the next call overwrites.
func (o *ops) gamma(n norm) snug.View {
	w := n.weight.Value
	if !o.config.NormPlusOne {
		return w
	}
	sum := part(o.plusOne, 0, w.Len())
	o.do(func() error { return fused.Add(sum, w, part(o.ones, 0, w.Len())) })
	return sum
}

func viewOf(t *tensor) snug.View {
	if t == nil {
		return none32
	}
	return t.View
}

// norm computes out = norm(x). The zero stats keep nothing. The rows have as many elements as
// the norm has weights, so that a norm of heads takes [rows, heads·width].
func (o *ops) norm(out *tensor, s stats, x *tensor, n norm) {
	eps, gamma := float32(o.config.NormEps), o.gamma(n)
	o.do(func() error {
		if n.bias != nil {
			return fused.LayerNorm(out.View, viewOf(s.mean), viewOf(s.rstd), x.View, gamma, n.bias.Value, eps)
		}
		return fused.RMSNorm(out.View, viewOf(s.rstd), x.View, gamma, eps)
	})
}

// normBackward computes dx = beta·dx + the gradient with respect to x, and the gradients of the parameters.
func (o *ops) normBackward(dx, dy *tensor, s stats, x *tensor, n norm, beta float32) {
	into, gamma := fused.GradsInto{Input: snug.Into{Alpha: 1, Beta: beta}}, o.gamma(n)
	o.do(func() error {
		dweight, params, err := o.gradient(n.weight)
		if err != nil {
			return err
		}
		into.Params = params
		if n.bias == nil {
			return fused.RMSNormBackward(dx.View, dweight, dy.View, x.View, s.rstd.View, gamma, into, o.ws.v)
		}
		dbias, params, err := o.gradient(n.bias)
		switch {
		case err != nil:
			return err
		case n.bias.Trains == n.weight.Trains:
			if into.Params != params {
				return fmt.Errorf("the window's Into of %s and of %s differ: %w", n.weight.Name, n.bias.Name, snug.ErrConfig)
			}
		default: // the kernel makes both gradients: the frozen parameter's is discarded
			if err := o.discard.grow(n.bias.Len()); err != nil {
				return err
			}
			waste := part(o.discard.v, 0, n.bias.Len())
			if n.weight.Trains {
				dbias = waste
			} else {
				dweight, into.Params = waste, params
			}
		}
		return fused.LayerNormBackward(dx.View, dweight, dbias, dy.View, x.View, s.mean.View, s.rstd.View, gamma, into, o.ws.v)
	})
	o.done(n.weight, n.bias)
}

// linear is a linear layer, y = x·w + b. Its matrix is [out, in], or [in, out] in GPT-2.
type linear struct {
	weight, bias *Param // bias: nil for none
	in, out      int
	conv         bool
	frozen       *qlora.Linear // product by a matrix in 4 bits, nil for others
	adapter      *adapter      // nil for none
}

// linear computes y = x·w + b + beta·y.
func (o *ops) linear(y, x *tensor, l *linear, beta float32) {
	scales := l.adapter != nil && l.adapter.dora != nil
	if scales {
		o.scaled(y, x, l, beta)
	} else {
		o.product(y, x, l, beta)
	}
	if l.bias != nil {
		o.do(func() error { return fused.BiasAdd(y.View, y.View, l.bias.Value) })
	}
	if l.adapter != nil && !scales {
		o.adapt(y, x, l.adapter)
	}
}

// product computes y = x·w + beta·y.
func (o *ops) product(y, x *tensor, l *linear, beta float32) {
	o.do(func() error {
		if l.frozen != nil {
			return l.frozen.Forward(y.View, x.View, beta)
		}
		w, err := o.hold(l.weight)
		if err != nil {
			return err
		}
		err = amp.MatMul(y.View, x.View, w, amp.MatMulOptions{
			M: o.pool.rows, N: l.out, K: l.in, TransB: !l.conv, Into: snug.Into{Alpha: 1, Beta: beta}})
		return errors.Join(err, o.drop(l.weight, false))
	})
}

// inputGradient computes dx = dy·wᵀ + beta·dx, without the adapter's part.
func (o *ops) inputGradient(dx, dy *tensor, l *linear, beta float32) {
	o.do(func() error {
		if l.frozen != nil {
			return l.frozen.Backward(dx.View, dy.View, beta)
		}
		w, err := o.hold(l.weight)
		if err != nil {
			return err
		}
		err = amp.MatMul(dx.View, dy.View, w, amp.MatMulOptions{
			M: o.pool.rows, N: l.in, K: l.out, TransB: l.conv, Into: snug.Into{Alpha: 1, Beta: beta}})
		return errors.Join(err, o.drop(l.weight, false))
	})
}

// linearBackward adds the parameters' gradients of layers that share their input x, and returns the gradient of x. It
// writes the gradient over x when the last of them has read x. It writes into a new tensor and frees x with adapters
// that train their A, which read x to the end, and where it is less than the gradients that a window which holds one at
// a time would hold until then.
func (o *ops) linearBackward(x *tensor, layers []linear, dy ...*tensor) *tensor {
	apart, others := false, 0
	for i, l := range layers {
		if apart = apart || l.adapter != nil && !l.adapter.FrozenA; i > 0 && l.weight.Trains {
			others += 4 * l.in * l.out
		}
	}
	apart = apart || holdsOne(o.backward.window) && x.Bytes() < others
	dx := x
	if apart {
		dx = o.get(layers[0].in)
	} else {
		for i := range layers {
			o.weightGradients(x, &layers[i], dy[i])
		}
	}
	us := o.inner(x, layers)
	for i := range layers {
		l := &layers[i]
		if apart {
			o.weightGradients(x, l, dy[i])
		}
		o.inputGradients(dx, dy[i], x, us[i], l, min(1, float32(i)))
		o.done(l.weight, l.bias) // this backward pass does not read them again
	}
	if apart {
		o.pool.put(x)
	}
	return dx
}

// inputGradients computes dx = beta·dx + the gradient of a layer's input x. With an adapter that trains its A dx is not
// x; u is the inner product of one whose A is frozen, else nil.
func (o *ops) inputGradients(dx, dy, x, u *tensor, l *linear, beta float32) {
	switch {
	case l.adapter == nil:
		o.inputGradient(dx, dy, l, beta)
	case l.adapter.dora != nil:
		o.scaledBackward(dx, dy, x, l, beta)
	default:
		o.inputGradient(dx, dy, l, beta)
		o.adaptBackward(dx, dy, x, u, l.adapter)
	}
}

// weightGradients adds to the gradients of a layer.
func (o *ops) weightGradients(x *tensor, l *linear, dy *tensor) {
	if l.weight.Trains {
		o.do(func() error {
			acc, into, err := o.gradient(l.weight)
			if err != nil {
				return err
			}
			g := amp.MatMulOptions{M: l.out, N: l.in, K: o.pool.rows, TransA: true, Into: into}
			if l.conv {
				g.M, g.N = l.in, l.out
				return amp.MatMul(acc, x.View, dy.View, g)
			}
			return amp.MatMul(acc, dy.View, x.View, g)
		})
	}
	if l.bias != nil && l.bias.Trains {
		o.do(func() error {
			acc, into, err := o.gradient(l.bias)
			if err != nil {
				return err
			}
			return fused.BiasAddBackward(acc, dy.View, into, o.ws.v)
		})
	}
}

// leave computes y = x + post(in·w + b), the end of a half. Without weights post is the identity. s, unless nil, keeps
// what the backward step of post needs.
func (o *ops) leave(y, x, in *tensor, l *linear, post norm, s *halfSaved) {
	if post.weight == nil {
		o.copyTo(y, x)
		o.linear(y, in, l, 1)
		return
	}
	half, kept := y, stats{}
	if s != nil {
		half, kept = s.half, s.post
	}
	o.linear(half, in, l, 0)
	o.norm(y, kept, half, post)
	o.do(func() error { return fused.Add(y.View, y.View, x.View) })
}

// leaveBackward returns the gradient of in·w + b for the gradient d of leave's y: d itself if there is no post,
// otherwise a new tensor.
func (o *ops) leaveBackward(d *tensor, post norm, s *halfSaved) *tensor {
	if post.weight == nil {
		return d
	}
	half := o.get(o.config.Dim)
	o.normBackward(half, d, s.post, s.half, post, 0)
	return half
}

// gradient returns the accumulator of a parameter and how the gradient of this micro-batch enters it. The accumulator
// of a frozen parameter is empty.
func (o *ops) gradient(p *Param) (snug.View, snug.Into, error) {
	if !p.Trains {
		return none32, snug.Into{}, nil
	}
	acc, into, err := o.backward.window.Into(p.Name)
	if err != nil {
		return none32, into, err
	}
	if acc.DType() != snug.F32 || acc.Len() != p.Len() {
		return none32, into, fmt.Errorf("the window's accumulator of %s has %d %s, want %d f32: %w",
			p.Name, acc.Len(), acc.DType(), p.Len(), snug.ErrShape)
	}
	return acc, into, nil
}

// done tells the window that the gradients of parameters are complete, once no tile follows.
func (o *ops) done(list ...*Param) {
	if o.tile.more {
		return
	}
	for _, p := range list {
		if p != nil && p.Trains && o.backward.done != nil {
			o.do(func() error { return o.backward.done.Done(p.Name) })
		}
	}
}

// rotate turns the heads of x by their positions.
func (o *ops) rotate(x *tensor, heads int, rope *angles) {
	if rope == nil {
		return
	}
	o.do(func() error {
		return fused.Rotary(x.View, rope.table.v, o.batch.positions, fused.RotaryOptions{Heads: heads, Dim: o.config.HeadDim})
	})
}

// rotateBack turns the gradient of rotate's result.
func (o *ops) rotateBack(dx *tensor, heads int, rope *angles) {
	if rope == nil {
		return
	}
	o.do(func() error {
		return fused.RotaryBackward(dx.View, rope.table.v, o.batch.positions, fused.RotaryOptions{Heads: heads, Dim: o.config.HeadDim})
	})
}

// attend computes out = attention(q, k, v) and writes to lse, unless it is nil, what attendBackward needs. If k and v
// are nil, the rows of q have q, k and v side by side.
func (o *ops) attend(out, lse, q, k, v *tensor, b *attentionHalf) {
	c := o.attention(b.keysSeen(), b.angles, k == nil)
	o.sinks(&c, b.sinks)
	if o.options.PlainAttention {
		o.do(func() error { return o.plainForward(out, lse, q, k, v, c) })
		return
	}
	o.do(func() error {
		q, k, v := o.split(q, k, v)
		return attention.Forward(out.View, viewOf(lse), q, k, v, c)
	})
}

func (o *ops) attendBackward(dq, dk, dv, dout, q, k, v, out, lse *tensor, b *attentionHalf) {
	c := o.attention(b.keysSeen(), b.angles, k == nil)
	o.sinks(&c, b.sinks)
	c.Sinks.Grad = o.sinkGradient(b.sinks)
	o.do(func() error {
		if o.options.PlainAttention {
			return o.plainBackward(dq, dk, dv, dout, q, k, v, lse, c)
		}
		q, k, v := o.split(q, k, v)
		dq, dk, dv := o.split(dq, dk, dv)
		return attention.Backward(dq, dk, dv, dout.View, q, k, v, out.View, lse.View, c, o.ws.v)
	})
	o.addSinks(b.sinks)
}

// split returns the vectors of q, k and v. Those of packed rows all lie in q.
func (o *ops) split(q, k, v *tensor) (snug.View, snug.View, snug.View) {
	if k != nil {
		return q.View, k.View, v.View
	}
	queries, keys, n := o.config.Heads*o.config.HeadDim, o.config.KVHeads*o.config.HeadDim, q.Len()
	return q.View, part(q.View, queries, n-queries), part(q.View, queries+keys, n-queries-keys)
}

// activate computes the activation of an MLP: act(gate)·up, or without a gate act(up + bias).
func (o *ops) activate(out, gate, up *tensor, bias *Param) {
	o.do(func() error {
		switch {
		case gate != nil && o.config.Activation == GELUTanh:
			return fused.GeGLU(out.View, gate.View, up.View)
		case gate != nil:
			return fused.SwiGLU(out.View, gate.View, up.View)
		case o.config.Activation == GELU:
			return fused.BiasGELUErf(out.View, up.View, bias.Value)
		}
		return fused.BiasGELU(out.View, up.View, bias.Value)
	})
}

// activateBackward turns the saved gate and up into their gradients.
func (o *ops) activateBackward(d, gate, up *tensor, bias *Param) {
	o.do(func() error {
		if gate != nil && o.config.Activation == GELUTanh {
			return fused.GeGLUBackward(gate.View, up.View, d.View, gate.View, up.View)
		}
		if gate != nil {
			return fused.SwiGLUBackward(gate.View, up.View, d.View, gate.View, up.View)
		}
		dbias, into, err := o.gradient(bias)
		if err != nil {
			return err
		}
		back := fused.BiasGELUBackward[snug.View, snug.View, snug.View]
		if o.config.Activation == GELU {
			back = fused.BiasGELUErfBackward[snug.View, snug.View, snug.View]
		}
		return back(up.View, dbias, d.View, up.View, bias.Value, into, o.ws.v)
	})
	o.done(bias)
}
