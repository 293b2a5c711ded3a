package main

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/quant8"
)

// The model: tokens are bytes, and a layer is
//
//	z = x + o(attention(rotary(qkv(norm(x)))))
//	y = z + down(swiglu(gate(norm(z)), up(norm(z))))
const (
	vocab, dim, heads, hidden, layers = 256, 128, 4, 384, 2
	sequences, tokens                 = 8, 64 // of a batch
	rows                              = sequences * tokens
	eps                               = 1e-5
)

// kind is what memory is used for.
type kind int

const (
	weights kind = iota
	adapters
	gradients
	states
	activations
	kinds
)

// model is a small GPT with all that a step of training needs. Its norms have gains of 1.
type model struct {
	form      form
	kind      qlora.Type // of weights in 4 bits
	bytes     [kinds]int64
	quantized struct{ bytes, elements int64 }
	rng       *rand.Rand
	err       error // the first of construction
	opt       *quant8.Optimizer
	params    []param

	table, dtable []float32 // of tokens, at both ends; in float32 in all forms
	blocks        []*block

	last, rstd, h, d []float32 // the last output, its norm, and the gradient that goes back
	wide, dq         []float32 // gradients of rows of hidden and of 3·dim elements
	ws, angles, ones []float32
	positions        []int32
}

// param is something to train.
type param struct {
	name    string
	w, grad []float32
}

// block is a layer and what it keeps for its backward pass.
type block struct {
	qkv, o, gate, up, down     *projection
	x, z, h1, h2, rstd1, rstd2 []float32
	q, att, lse, g, u, act     []float32
}

// floats returns n of them, which count as memory of kind k.
func (m *model) floats(k kind, n int) []float32 {
	m.bytes[k] += 4 * int64(n)
	return make([]float32, n)
}

func (m *model) normal(x []float32, scale float64) {
	for i := range x {
		x[i] = float32(m.rng.NormFloat64() * scale)
	}
}

// train returns the gradient of a parameter, which has optimizer state from now on.
func (m *model) train(name string, w []float32) []float32 {
	p := param{name, w, m.floats(gradients, len(w))}
	m.params = append(m.params, p)
	m.err = cmp.Or(m.err, m.opt.Add(name, len(w)))
	return p.grad
}

// newModel makes a model with the weights of another one, or random ones of nil.
func newModel(f form, kind qlora.Type, from *model) (*model, error) {
	m := &model{form: f, kind: kind, rng: rand.New(rand.NewPCG(1, 2))}
	if m.opt, m.err = quant8.New(quant8.AdamW{Beta2: 0.99}, quant8.Options{Bits: 32}); m.err != nil {
		return nil, m.err
	}
	m.table = m.floats(weights, vocab*dim)
	m.normal(m.table, 0.05)
	if from == nil {
		from = &model{blocks: make([]*block, layers)}
		for i := range from.blocks {
			from.blocks[i] = &block{}
		}
	}
	copy(m.table, from.table)
	if f == whole {
		m.dtable = m.train("table", m.table)
	}
	for i, b := range from.blocks {
		name := fmt.Sprint(i)
		m.blocks = append(m.blocks, &block{
			qkv: m.projection(name+".qkv", dim, 3*dim, b.qkv), o: m.projection(name+".o", dim, dim, b.o),
			gate: m.projection(name+".gate", dim, hidden, b.gate), up: m.projection(name+".up", dim, hidden, b.up),
			down: m.projection(name+".down", hidden, dim, b.down),
		})
	}
	m.scratch()
	m.bytes[states] = m.opt.StateBytes()
	return m, m.err
}

// scratch makes what steps need beside parameters.
func (m *model) scratch() {
	act := func(width int) []float32 { return m.floats(activations, rows*width) }
	for _, b := range m.blocks {
		b.x, b.z, b.h1, b.h2, b.rstd1, b.rstd2 = act(dim), act(dim), act(dim), act(dim), act(1), act(1)
		b.q, b.att, b.lse = act(3*dim), act(dim), act(heads)
		b.g, b.u, b.act = act(hidden), act(hidden), act(hidden)
	}
	m.last, m.rstd, m.h, m.d = act(dim), act(1), act(dim), act(dim)
	m.wide, m.dq = act(hidden), act(3*dim)
	m.ws = m.floats(activations, max(m.loss().WorkspaceLen(rows), m.attention().WorkspaceLen()))
	m.angles, m.ones = m.floats(activations, tokens*dim/heads), slices.Repeat([]float32{1}, dim)
	m.err = cmp.Or(m.err, fused.RotaryAngles(m.angles, dim/heads, 10000))
	for r := range rows {
		m.positions = append(m.positions, int32(r%tokens))
	}
}

func (m *model) loss() fused.CrossEntropy { return fused.CrossEntropy{Vocab: vocab, Cols: dim} }

func (m *model) attention() attention.Options {
	return attention.PackedQKV(attention.Options{Batch: sequences, Heads: heads, SeqQ: tokens, Dim: dim / heads, Causal: true})
}

func (m *model) rotary() fused.RotaryOptions {
	return fused.RotaryOptions{Heads: 2 * heads, Dim: dim / heads, Stride: 3 * dim} // queries and keys
}

// forward leaves the normalized output of the last block in m.h.
func (m *model) forward(input []int32) error {
	err := fused.Embedding(m.blocks[0].x, m.table, input, nil, nil, dim)
	for i, b := range m.blocks {
		y := m.last
		if i+1 < len(m.blocks) {
			y = m.blocks[i+1].x
		}
		err = cmp.Or(err, m.forwardBlock(b, y))
	}
	return cmp.Or(err, fused.RMSNorm(m.h, m.rstd, m.last, m.ones, eps))
}

func (m *model) forwardBlock(b *block, y []float32) error {
	err := cmp.Or(
		fused.RMSNorm(b.h1, b.rstd1, b.x, m.ones, eps),
		b.qkv.forward(b.q, b.h1, 0),
		fused.Rotary(b.q, m.angles, m.positions, m.rotary()),
		attention.Forward(b.att, b.lse, b.q, b.q[dim:], b.q[2*dim:], m.attention()))
	copy(b.z, b.x)
	err = cmp.Or(err, b.o.forward(b.z, b.att, 1),
		fused.RMSNorm(b.h2, b.rstd2, b.z, m.ones, eps),
		b.gate.forward(b.g, b.h2, 0), b.up.forward(b.u, b.h2, 0),
		fused.SwiGLU(b.act, b.g, b.u))
	copy(y, b.z)
	return cmp.Or(err, b.down.forward(y, b.act, 1))
}

// evaluate returns the mean loss of a batch.
func (m *model) evaluate(b batch) (float64, error) {
	err := m.forward(b.input)
	loss, e := fused.CrossEntropyLoss(m.loss(), m.h, m.table, b.target, m.ws)
	return loss.Sum / rows, cmp.Or(err, e)
}

// step trains on a batch.
func (m *model) step(b batch, lr float32) error {
	err := m.forward(b.input)
	_, e := fused.CrossEntropyBackward(m.loss(), m.h, m.dtable, m.h, m.table, b.target, 1.0/rows, snug.Into{}, m.ws)
	err = cmp.Or(err, e, m.normBackward(0, m.last, m.rstd))
	for i := range m.blocks {
		err = cmp.Or(err, m.backwardBlock(m.blocks[len(m.blocks)-1-i]))
	}
	if m.form == whole {
		err = cmp.Or(err, fused.EmbeddingBackward(m.dtable, m.d, b.input, dim, snug.Into{Beta: 1}))
	}
	m.opt.Advance(lr)
	for _, p := range m.params {
		err = cmp.Or(err, m.opt.Step(p.name, snug.ViewOf(p.w), snug.ViewOf(p.grad), 1))
	}
	return err
}

// normBackward computes m.d = beta·m.d + the gradient in x, from that of its norm in m.h.
func (m *model) normBackward(beta float32, x, rstd []float32) error {
	frozen := []float32(nil)
	return fused.RMSNormBackward(m.d, frozen, m.h, x, rstd, m.ones, fused.GradsInto{Input: snug.Into{Beta: beta}}, nil)
}

// backwardBlock turns the gradient of y in m.d into that of x.
func (m *model) backwardBlock(b *block) error {
	return cmp.Or(
		b.down.backward(m.wide, m.d, b.act, 0),
		fused.SwiGLUBackward(b.g, b.u, m.wide, b.g, b.u), // in their place
		b.gate.backward(m.h, b.g, b.h2, 0), b.up.backward(m.h, b.u, b.h2, 1),
		m.normBackward(1, b.z, b.rstd2),
		b.o.backward(m.h, m.d, b.att, 0),
		attention.Backward(m.dq, m.dq[dim:], m.dq[2*dim:], m.h, b.q, b.q[dim:], b.q[2*dim:], b.att, b.lse, m.attention(), m.ws),
		fused.RotaryBackward(m.dq, m.angles, m.positions, m.rotary()),
		b.qkv.backward(m.h, m.dq, b.h1, 0),
		m.normBackward(1, b.x, b.rstd1))
}
