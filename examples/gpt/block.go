package main

import (
	"context"
)

// A transformer layer is two stages of the chain, so that a plan can keep or compute
// again either half of it:
//
//	z = x + proj(attention(qkv(norm(x))))
//	y = z + down(gelu(up(norm(z)) + bias))
//
// The backward steps need their inputs, those of the nonlinearities and the output
// of attention. Normalized inputs and gelu's output are computed again from those,
// which is cheap. With M rows and width C, an activation has M·C elements. What the
// halves take is [plan.GPT]'s description of them.

// saved is what a half keeps for its backward step.
type saved struct {
	y          *tensor
	mean, rstd *tensor // of the norm, M each
	qkv, att   *tensor // attention: 3·M·C, M·C
	forAttend  *tensor // and what that saves
	up         *tensor // perceptron: 4·M·C
}

func (s *saved) tensors() []*tensor {
	return []*tensor{s.y, s.mean, s.rstd, s.qkv, s.att, s.forAttend, s.up}
}

func savedBytes(s *saved) (sum int64) {
	for _, t := range s.tensors() {
		if t != nil {
			sum += bytesOf(t)
		}
	}
	return sum
}

// finish returns s, or frees it after an error.
func (o *ops) finish(s *saved) (*saved, error) {
	if o.err != nil {
		o.pool.put(s.tensors()...)
		return nil, o.err
	}
	return s, nil
}

// attentionHalf is z = x + proj(attention(qkv(norm(x)))).
type attentionHalf struct {
	*model
	norm      norm
	qkv, proj *param
}

func (b *attentionHalf) Forward(_ context.Context, x *tensor) (*tensor, error) {
	o, c := b.ops(), b.dim
	h := o.result("layer_norm", c, x)
	qkv := o.result("linear", 3*c, h)
	o.layerNorm(h, nil, nil, x, b.norm)
	o.linear(qkv, h, b.qkv, 0)
	o.attend(h, nil, qkv)
	b.pool.put(qkv)
	z := o.result("add", c, x)
	o.copyTo(z, x)
	o.linear(z, h, b.proj, 1)
	b.pool.put(h)
	if o.err != nil {
		b.pool.put(z)
		return nil, o.err
	}
	return z, nil
}

// save computes all but the output, for which it only makes room.
func (b *attentionHalf) save(o *ops, x *tensor) *saved {
	c := b.dim
	h := o.result("layer_norm", c, x)
	qkv := o.result("linear", 3*c, h)
	s := &saved{
		y: o.result("add", c, x), qkv: qkv, att: o.result("scaled_dot_product_attention", c, qkv),
		mean: o.stat(o.rows), rstd: o.stat(o.rows), forAttend: o.saveForAttention(qkv),
	}
	o.layerNorm(h, s.mean, s.rstd, x, b.norm)
	o.linear(s.qkv, h, b.qkv, 0)
	b.pool.put(h)
	o.attend(s.att, s.forAttend, s.qkv)
	return s
}

func (b *attentionHalf) ForwardSave(_ context.Context, x *tensor) (*tensor, *saved, error) {
	o := b.ops()
	s := b.save(o, x)
	o.copyTo(s.y, x)
	o.linear(s.y, s.att, b.proj, 1)
	s, err := o.finish(s)
	if err != nil {
		return nil, nil, err
	}
	return s.y, s, nil
}

// Resave leaves out the last product.
func (b *attentionHalf) Resave(_ context.Context, x *tensor) (*saved, error) {
	o := b.ops()
	return o.finish(b.save(o, x))
}

// Backward turns the gradient of z, in place, into that of x.
func (b *attentionHalf) Backward(_ context.Context, x *tensor, s *saved, d *tensor) (*tensor, error) {
	o, c := b.ops(), b.dim
	h := o.alloc(s.att.DType(), c)
	o.linearWeight(b.proj, d, s.att)
	o.linearInput(h, d, b.proj)
	dqkv := o.alloc(s.qkv.DType(), 3*c)
	o.attendBackward(dqkv, h, s.qkv, s.att, s.forAttend)
	o.layerNorm(h, nil, nil, x, b.norm)
	o.linearWeight(b.qkv, dqkv, h)
	o.linearInput(h, dqkv, b.qkv)
	b.pool.put(dqkv)
	o.layerNormBackward(d, h, x, s.mean, s.rstd, b.norm, 1)
	b.pool.put(h)
	if o.err != nil {
		b.pool.put(d)
		return nil, o.err
	}
	return d, nil
}

// perceptronHalf is y = z + down(gelu(up(norm(z)) + bias)).
type perceptronHalf struct {
	*model
	norm           norm
	up, bias, down *param
}

func (b *perceptronHalf) Forward(_ context.Context, x *tensor) (*tensor, error) {
	o, c := b.ops(), b.dim
	h := o.result("layer_norm", c, x)
	up := o.result("linear", 4*c, h)
	o.layerNorm(h, nil, nil, x, b.norm)
	o.linear(up, h, b.up, 0)
	b.pool.put(h)
	o.gelu(up, up, b.bias)
	y := o.result("add", c, x)
	o.copyTo(y, x)
	o.linear(y, up, b.down, 1)
	b.pool.put(up)
	if o.err != nil {
		b.pool.put(y)
		return nil, o.err
	}
	return y, nil
}

// save computes all but the output, for which it only makes room.
func (b *perceptronHalf) save(o *ops, x *tensor) *saved {
	c := b.dim
	h := o.result("layer_norm", c, x)
	s := &saved{y: o.result("add", c, x), up: o.result("linear", 4*c, h), mean: o.stat(o.rows), rstd: o.stat(o.rows)}
	o.layerNorm(h, s.mean, s.rstd, x, b.norm)
	o.linear(s.up, h, b.up, 0)
	b.pool.put(h)
	return s
}

func (b *perceptronHalf) ForwardSave(_ context.Context, x *tensor) (*tensor, *saved, error) {
	o := b.ops()
	s := b.save(o, x)
	g := o.result("gelu", 4*b.dim, s.up)
	o.gelu(g, s.up, b.bias)
	o.copyTo(s.y, x)
	o.linear(s.y, g, b.down, 1)
	b.pool.put(g)
	s, err := o.finish(s)
	if err != nil {
		return nil, nil, err
	}
	return s.y, s, nil
}

// Resave leaves out gelu and the last product.
func (b *perceptronHalf) Resave(_ context.Context, x *tensor) (*saved, error) {
	o := b.ops()
	return o.finish(b.save(o, x))
}

// Backward turns the gradient of y, in place, into that of x.
func (b *perceptronHalf) Backward(_ context.Context, x *tensor, s *saved, d *tensor) (*tensor, error) {
	o, c := b.ops(), b.dim
	g, h := o.result("gelu", 4*c, s.up), o.result("layer_norm", c, x)
	o.gelu(g, s.up, b.bias)
	o.linearWeight(b.down, d, g)
	o.linearInput(g, d, b.down) // now the gradient of gelu's output
	o.geluBackward(g, s.up, b.bias)
	o.layerNorm(h, nil, nil, x, b.norm)
	o.linearWeight(b.up, g, h)
	o.linearInput(h, g, b.up)
	b.pool.put(g)
	o.layerNormBackward(d, h, x, s.mean, s.rstd, b.norm, 1)
	b.pool.put(h)
	if o.err != nil {
		b.pool.put(d)
		return nil, o.err
	}
	return d, nil
}

// ops returns the layers for the micro-batch at hand.
func (m *model) ops() *ops { return &ops{model: m, rows: m.sequences * m.tokens} }
