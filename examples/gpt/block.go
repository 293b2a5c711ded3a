package main

import "context"

// block is one transformer layer, a stage of the chain:
//
//	z = x + proj(attention(qkv(norm1(x))))
//	y = z + down(gelu(up(norm2(z)) + bias))
//
// The backward pass needs x, z, the inputs of the nonlinearities and the
// output of attention. Normalized inputs and gelu's output are computed again
// from those, which is cheap.
type block struct {
	*model
	norm1, norm2        norm
	qkv, proj, up, down *param
	bias                *param // of up
}

// saved is what a block keeps for its backward pass. With M rows and width C
// it takes 10·M·C elements, 4·M statistics and what attention saves.
type saved struct {
	y, qkv, att, z, up      *tensor // M × C, 3C, C, C, 4C
	mean1, rstd1            *tensor
	mean2, rstd2, forAttend *tensor
}

func (s *saved) tensors() []*tensor {
	return []*tensor{s.y, s.qkv, s.att, s.z, s.up, s.mean1, s.rstd1, s.mean2, s.rstd2, s.forAttend}
}

func savedBytes(s *saved) (sum int64) {
	for _, t := range s.tensors() {
		sum += bytesOf(t)
	}
	return sum
}

func (b *block) ops() *ops { return &ops{model: b.model, rows: b.sequences * b.tokens} }

// Forward computes y and keeps nothing else. At most 5·M·C elements are in use
// beyond x and y.
func (b *block) Forward(_ context.Context, x *tensor) (*tensor, error) {
	o, c := b.ops(), b.dim
	h, qkv := o.alloc(c), o.alloc(3*c)
	o.layerNorm(h, nil, nil, x, b.norm1)
	o.linear(qkv, h, b.qkv, 0)
	o.attend(h, nil, qkv)
	b.pool.put(qkv)
	y := o.alloc(c)
	o.copyTo(y, x)
	o.linear(y, h, b.proj, 1)
	o.layerNorm(h, nil, nil, y, b.norm2)
	up := o.alloc(4 * c)
	o.linear(up, h, b.up, 0)
	o.gelu(up, up, b.bias)
	o.linear(y, up, b.down, 1)
	b.pool.put(h, up)
	if o.err != nil {
		b.pool.put(y)
		return nil, o.err
	}
	return y, nil
}

// ForwardSave computes y and keeps what Backward needs. At most 4·M·C elements
// are in use beyond that.
func (b *block) ForwardSave(_ context.Context, x *tensor) (*tensor, *saved, error) {
	o, c := b.ops(), b.dim
	s := &saved{
		qkv: o.alloc(3 * c), att: o.alloc(c), z: o.alloc(c),
		mean1: o.stat(o.rows), rstd1: o.stat(o.rows), mean2: o.stat(o.rows), rstd2: o.stat(o.rows),
		forAttend: o.saveForAttention(),
	}
	h := o.alloc(c)
	o.layerNorm(h, s.mean1, s.rstd1, x, b.norm1)
	o.linear(s.qkv, h, b.qkv, 0)
	o.attend(s.att, s.forAttend, s.qkv)
	o.copyTo(s.z, x)
	o.linear(s.z, s.att, b.proj, 1)
	o.layerNorm(h, s.mean2, s.rstd2, s.z, b.norm2)
	s.up = o.alloc(4 * c)
	o.linear(s.up, h, b.up, 0)
	b.pool.put(h)
	g := o.alloc(4 * c)
	o.gelu(g, s.up, b.bias)
	s.y = o.alloc(c)
	o.copyTo(s.y, s.z)
	o.linear(s.y, g, b.down, 1)
	b.pool.put(g)
	if o.err != nil {
		b.pool.put(s.tensors()...)
		return nil, nil, o.err
	}
	return s.y, s, nil
}

// Backward turns dy, in place, into dx and adds the gradients of the weights to
// the window. At most 5·M·C elements are in use beyond dy and the saved ones.
func (b *block) Backward(_ context.Context, x *tensor, s *saved, dy *tensor) (*tensor, error) {
	o, c := b.ops(), b.dim
	d := dy // of the residual stream: of y, then z, then x

	g, h := o.alloc(4*c), o.alloc(c)
	o.gelu(g, s.up, b.bias)
	o.linearWeight(b.down, d, g)
	o.linearInput(g, d, b.down) // now the gradient of gelu's output
	o.geluBackward(g, s.up, b.bias)
	o.layerNorm(h, nil, nil, s.z, b.norm2)
	o.linearWeight(b.up, g, h)
	o.linearInput(h, g, b.up)
	b.pool.put(g)
	o.layerNormBackward(d, h, s.z, s.mean2, s.rstd2, b.norm2, 1)

	o.linearWeight(b.proj, d, s.att)
	o.linearInput(h, d, b.proj)
	dqkv := o.alloc(3 * c)
	o.attendBackward(dqkv, h, s.qkv, s.att, s.forAttend)
	o.layerNorm(h, nil, nil, x, b.norm1)
	o.linearWeight(b.qkv, dqkv, h)
	o.linearInput(h, dqkv, b.qkv)
	b.pool.put(dqkv)
	o.layerNormBackward(d, h, x, s.mean1, s.rstd1, b.norm1, 1)
	b.pool.put(h)
	if o.err != nil {
		b.pool.put(d)
		return nil, o.err
	}
	return d, nil
}
