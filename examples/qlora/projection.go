package main

import (
	"cmp"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// form is what is trained of a model, and how the rest is stored.
type form int

const (
	whole   form = iota // all parameters, in float32
	adapted             // adapters of projections that are frozen in float32
	qlorad              // adapters of projections that are frozen in 4 bits
	forms
)

func (f form) String() string { return [...]string{"full", "LoRA", "QLoRA"}[f] }

const rank, alpha = 8, 16

// projection is y = x·Wᵀ, in one of the forms.
type projection struct {
	in, out int
	w, grad []float32     // of W; grad only in the form whole, w not in 4 bits
	base    *qlora.Linear // in 4 bits
	adapter *qlora.LoRA
	grads   qlora.Grads
	u, du   snug.View // what the adapter keeps, and a place for the gradient of that
}

// projection makes W of another projection, or a random one of nil.
func (m *model) projection(name string, in, out int, from *projection) *projection {
	p := &projection{in: in, out: out}
	if m.form != qlorad {
		p.w = m.floats(weights, in*out)
	}
	if m.form == whole {
		p.grad = m.train(name, p.w)
	}
	if from == nil {
		m.normal(p.w, 1/math.Sqrt(float64(in)))
		return p
	}
	copy(p.w, from.w)
	if m.form == whole {
		return p
	}
	if m.form == qlorad {
		p.quantize(m, from.w)
	}
	a, b := m.floats(adapters, rank*in), m.floats(adapters, out*rank)
	m.normal(a, 1/math.Sqrt(float64(in)))
	p.adapter = &qlora.LoRA{In: in, Out: out, Rank: rank, Scale: qlora.LoRAScale(alpha, rank, false), A: snug.ViewOf(a), B: snug.ViewOf(b)}
	p.grads = qlora.Grads{A: snug.ViewOf(m.train(name+".a", a)), B: snug.ViewOf(m.train(name+".b", b))}
	p.u, p.du = snug.ViewOf(m.floats(activations, rows*rank)), snug.ViewOf(m.floats(activations, rows*rank))
	return p
}

func (p *projection) quantize(m *model, w []float32) {
	weight, err := qlora.NewWeight(w, []int{p.out, p.in}, qlora.Options{Type: m.kind}) // with double quantization
	if err == nil {
		m.bytes[weights] += weight.Bytes()
		m.quantized.bytes += weight.Bytes()
		m.quantized.elements += int64(weight.Len())
		p.base, err = qlora.NewLinear(weight, snug.F32, 16*p.in) // decodes 16 rows at a time
	}
	if err == nil {
		m.bytes[activations] += p.base.Bytes()
	}
	m.err = cmp.Or(m.err, err)
}

// forward computes y = x·Wᵀ + beta·y, with the adapter.
func (p *projection) forward(y, x []float32, beta float32) (err error) {
	vy, vx := snug.ViewOf(y), snug.ViewOf(x)
	if p.base != nil {
		err = p.base.Forward(vy, vx, beta)
	} else {
		err = amp.MatMul(y, x, p.w, amp.MatMulOptions{M: rows, N: p.out, K: p.in, TransB: true, Into: snug.Into{Beta: beta}})
	}
	if p.adapter != nil {
		err = cmp.Or(err, p.adapter.Forward(vy, p.u, vx, qlora.Dropout{}))
	}
	return err
}

// backward computes dx = dy·W + beta·dx and the gradients of what is trained.
func (p *projection) backward(dx, dy, x []float32, beta float32) (err error) {
	vdx, vdy, vx := snug.ViewOf(dx), snug.ViewOf(dy), snug.ViewOf(x)
	if p.base != nil {
		err = p.base.Backward(vdx, vdy, beta)
	} else {
		err = amp.MatMul(dx, dy, p.w, amp.MatMulOptions{M: rows, N: p.in, K: p.out, Into: snug.Into{Beta: beta}})
	}
	if p.adapter != nil {
		return cmp.Or(err, p.adapter.Backward(vdx, p.du, vdy, p.u, vx, p.grads, qlora.Dropout{}))
	}
	return cmp.Or(err, amp.MatMul(p.grad, dy, x, amp.MatMulOptions{M: p.out, N: p.in, K: rows, TransA: true}))
}
