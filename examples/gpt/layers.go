package main

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/plan"
)

const normEps = 1e-5

// ops calls the layers for one micro-batch and keeps the first error; after an
// error it does nothing. It knows the shapes: activations are [rows, width] in
// the types that policy.go says, a weight is [out, in].
type ops struct {
	*model
	rows int // sequences × tokens
	err  error
}

// stat returns a float32 activation of n elements.
func (o *ops) stat(n int) *tensor { return o.pool.get(plan.Activations, snug.F32, n) }

func (o *ops) do(call func() error) {
	if o.err = cmp.Or(o.err, o.pool.err); o.err == nil {
		o.err = call()
	}
}

// copyTo writes x over y.
func (o *ops) copyTo(y, x *tensor) {
	o.do(func() error { return amp.Cast(y.View, x.View) })
}

// linear computes y = x·wᵀ + beta·y.
func (o *ops) linear(y, x *tensor, w *param, beta float32) {
	o.do(func() error {
		return amp.MatMul(y.View, x.View, w.value, amp.MatMulOptions{M: o.rows, N: w.rows, K: w.cols, TransB: true, Into: snug.Into{Beta: beta}})
	})
}

// linearInput computes dx = dy·w.
func (o *ops) linearInput(dx, dy *tensor, w *param) {
	o.do(func() error {
		return amp.MatMul(dx.View, dy.View, w.value, amp.MatMulOptions{M: o.rows, N: w.cols, K: w.rows})
	})
}

// linearWeight adds dyᵀ·x to w's gradient.
func (o *ops) linearWeight(w *param, dy, x *tensor) {
	o.do(func() error {
		acc, into, err := o.gradient(w)
		if err != nil {
			return err
		}
		return amp.MatMul(acc, dy.View, x.View, amp.MatMulOptions{
			M: w.rows, N: w.cols, K: o.rows, TransA: true, Into: snug.Into{Alpha: into.Alpha, Beta: into.Beta}})
	})
}

// gradient returns the accumulator of a parameter and how this micro-batch's
// gradient enters it.
func (o *ops) gradient(w *param) (snug.View, snug.Into, error) {
	return o.window.Into(w.name)
}

// norm is a layer norm's pair of parameters.
type norm struct{ gain, bias *param }

// layerNorm computes out = norm(x). Without a place for the statistics it
// keeps none.
func (o *ops) layerNorm(out *tensor, mean, rstd, x *tensor, n norm) {
	o.do(func() error {
		return fused.LayerNorm(out.View, viewOrNone(mean), viewOrNone(rstd), x.View, n.gain.value, n.bias.value, normEps)
	})
}

// layerNormBackward computes dx = beta·dx + the gradient in x.
func (o *ops) layerNormBackward(dx, dy, x, mean, rstd *tensor, n norm, beta float32) {
	o.do(func() error {
		dgain, into, err := o.gradient(n.gain)
		if err != nil {
			return err
		}
		dbias, _, err := o.gradient(n.bias)
		if err != nil {
			return err
		}
		return fused.LayerNormBackward(dx.View, dgain, dbias, dy.View, x.View, mean.View, rstd.View, n.gain.value,
			fused.GradsInto{Input: snug.Into{Alpha: 1, Beta: beta}, Params: into}, o.ws)
	})
}

// gelu computes out = gelu(x + bias).
func (o *ops) gelu(out, x *tensor, bias *param) {
	o.do(func() error { return fused.BiasGELU(out.View, x.View, bias.value) })
}

// geluBackward turns the gradient of gelu's output in d into that of x.
func (o *ops) geluBackward(d, x *tensor, bias *param) {
	o.do(func() error {
		dbias, into, err := o.gradient(bias)
		if err != nil {
			return err
		}
		return fused.BiasGELUBackward(d.View, dbias, d.View, x.View, bias.value, into, o.ws)
	})
}

// attentionConfig is causal self-attention over the packed output of one
// matmul.
func (m *model) attentionConfig() attention.Options {
	return attention.PackedQKV(attention.Options{
		Batch: m.sequences, Heads: m.heads, SeqQ: m.tokens, Dim: m.dim / m.heads, Causal: true,
	})
}

// parts returns where q, k and v begin in a packed vector.
func (m *model) parts(qkv *tensor) (q, k, v snug.View) {
	n := qkv.Len()
	return qkv.View, sub(qkv.View, m.dim, n-m.dim), sub(qkv.View, 2*m.dim, n-2*m.dim)
}

// attend computes out = attention(qkv). In lse it leaves what the backward
// pass needs: with the technique on, a number a row; without it, the whole
// matrix of probabilities. A nil lse keeps nothing.
func (o *ops) attend(out, lse, qkv *tensor) {
	o.do(func() error {
		if !o.on[useAttention] {
			return o.naiveForward(out, lse, qkv)
		}
		q, k, v := o.parts(qkv)
		return attention.Forward(out.View, viewOrNone(lse), q, k, v, o.attentionConfig())
	})
}

// attendBackward computes dqkv.
func (o *ops) attendBackward(dqkv, dout, qkv, out, lse *tensor) {
	o.do(func() error {
		if !o.on[useAttention] {
			return o.naiveBackward(dqkv, dout, qkv, lse)
		}
		cfg := o.attentionConfig()
		q, k, v := o.parts(qkv)
		dq, dk, dv := o.parts(dqkv)
		ws := sub(o.ws, 0, cfg.WorkspaceLen())
		return attention.Backward(dq, dk, dv, dout.View, q, k, v, out.View, lse.View, cfg, ws)
	})
}

// saveForAttention returns what attend keeps for the backward pass.
func (o *ops) saveForAttention(qkv *tensor) *tensor {
	if o.on[useAttention] {
		return o.stat(o.heads * o.rows)
	}
	return o.result("softmax", o.heads*o.tokens, qkv)
}

func viewOrNone(t *tensor) snug.View {
	if t == nil {
		return snug.ViewOf([]float32(nil))
	}
	return t.View
}

// newWindow returns the accumulator of all parameters' gradients. Micro-batches
// weigh their tokens, and a window has those of a step, in however many.
func newWindow(dev *snug.Device, c config, params []*param) (*accum.Window, error) {
	list := make([]accum.Param, len(params))
	for i, p := range params {
		list[i] = accum.Param{Name: p.name, Len: p.rows * p.cols}
	}
	buffer, err := newVector(dev, snug.F32, int(c.parameters()))
	if err != nil {
		return nil, err
	}
	return accum.New(list, accum.Options{
		Schedule: accum.Weight(c.batch().Global * c.context),
		Buffer:   buffer,
		Measure:  c.poison > 0, // to say which micro-batch a NaN came from
	})
}

// initScale is the standard deviation of a weight's first values, as GPT-2
// has it: 0.02, and less for what adds to the residual stream.
func (c config) initScale(residual bool) float64 {
	if residual {
		return 0.02 / math.Sqrt(2*float64(c.layers))
	}
	return 0.02
}
