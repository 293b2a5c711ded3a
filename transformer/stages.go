package transformer

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug/remat"
)

// A layer is two stages of the chain, so that a plan can keep or compute again either half:
//
//	z = x + out(attention(rope(norm(q·h)), rope(norm(k·h)), v·h))   h = norm(x)
//	y = z + down(act(gate·g)·up·g)                                  g = norm(z)
//
// Their backward steps need the inputs of the halves, what attention reads and writes, and the
// inputs of the activation. Normalized inputs and the activation's output are computed again
// from those, which is cheap. The gradients of gate and up are written over gate and up.

// saved is what a stage keeps for its backward step.
type saved struct {
	y        *tensor
	norm     stats
	q, k, v  *tensor // q and k before their norms, if they have norms, or after the rope
	att, lse *tensor
	gate, up *tensor
	half     *tensor // input of the norm after the half, if there is one
	post     stats
}

func (s *saved) tensors() [12]*tensor {
	return [...]*tensor{s.y, s.norm.mean, s.norm.rstd, s.q, s.k, s.v, s.att, s.lse, s.gate, s.up, s.half, s.post.rstd}
}

func savedBytes(s *saved) (sum int64) {
	for _, t := range s.tensors() {
		if t != nil {
			sum += int64(t.Bytes())
		}
	}
	return sum
}

// newSaved returns a set to fill. Freed ones are used again.
func (m *Model) newSaved() *saved {
	n := len(m.sets)
	if n == 0 {
		return &saved{}
	}
	s := m.sets[n-1]
	m.sets = m.sets[:n-1]
	return s
}

// keepPost makes room for what a norm after a half needs.
func (o *ops) keepPost(s *saved, post norm) {
	if post.weight != nil {
		s.half, s.post = o.get(o.config.Dim), o.stats(post)
	}
}

func (m *Model) releaseSaved(s *saved) {
	for _, t := range s.tensors() {
		m.pool.put(t)
	}
	*s = saved{}
	m.sets = append(m.sets, s)
}

// makeStages makes the chain and the norms and matrices of its stages.
func (m *Model) makeStages() {
	c := &m.config
	m.chain = &remat.Chain[*tensor, *saved]{
		Bytes:        func(t *tensor) int64 { return int64(t.Bytes()) },
		SavedBytes:   savedBytes,
		Release:      func(t *tensor) { m.pool.put(t) },
		ReleaseSaved: m.releaseSaved,
	}
	for i := range c.Layers {
		a := &attentionHalf{Model: m, index: 2 * i, window: c.Windows[i]}
		switch {
		case len(m.ropes) == 2 && a.window > 0:
			a.angles = m.ropes[1]
		case len(m.ropes) > 0:
			a.angles = m.ropes[0]
		}
		p := &perceptronHalf{Model: m, index: 2*i + 1}
		if c.Family == "gpt2" {
			m.gpt2Layer(fmt.Sprintf("h.%d.", i), a, p)
		} else {
			m.llamaLayer(fmt.Sprintf("layers.%d.", i), a, p)
		}
		m.chain.Stages = append(m.chain.Stages, a, p)
	}
	m.table = m.param(c.embedding())
	if c.Family == "gpt2" {
		m.positions = m.param("wpe.weight")
		m.last = norm{m.param("ln_f.weight"), m.param("ln_f.bias")}
	} else {
		m.last = norm{weight: m.param("norm.weight")}
	}
	if m.head = m.table; !c.Tied {
		m.head = m.index[c.layout().head]
	}
	m.first = m.firstTrained()
}

// llamaLayer fills the stages of a layer whose parameters have the names of Llama.
func (m *Model) llamaLayer(name string, a *attentionHalf, p *perceptronHalf) {
	c := &m.config
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	project := func(part string, in, out int, bias bool) linear {
		l := linear{weight: m.param(name + part + ".weight"), in: in, out: out}
		if bias {
			l.bias = m.param(name + part + ".bias")
		}
		return l
	}
	a.norm = norm{weight: m.param(name + "input_layernorm.weight")}
	a.qkv = []linear{
		project("self_attn.q_proj", c.Dim, queries, c.QKVBias),
		project("self_attn.k_proj", c.Dim, keys, c.QKVBias),
		project("self_attn.v_proj", c.Dim, keys, c.QKVBias),
	}
	if c.QKNorm {
		a.qNorm = norm{weight: m.param(name + "self_attn.q_norm.weight")}
		a.kNorm = norm{weight: m.param(name + "self_attn.k_norm.weight")}
	}
	a.out = []linear{project("self_attn.o_proj", queries, c.Dim, c.OutBias)}
	p.norm = norm{weight: m.param(name + "post_attention_layernorm.weight")}
	if c.PostNorms { // the norm of that name then ends the first half
		a.post, p.norm = p.norm, norm{weight: m.param(name + "pre_feedforward_layernorm.weight")}
		p.post = norm{weight: m.param(name + "post_feedforward_layernorm.weight")}
	}
	p.in = []linear{project("mlp.gate_proj", c.Dim, c.Hidden, c.MLPBias), project("mlp.up_proj", c.Dim, c.Hidden, c.MLPBias)}
	p.down = []linear{project("mlp.down_proj", c.Hidden, c.Dim, c.MLPBias)}
}

// gpt2Layer fills the stages of a layer of GPT-2. The bias before GELU is a part of the
// activation.
func (m *Model) gpt2Layer(name string, a *attentionHalf, p *perceptronHalf) {
	c := &m.config
	project := func(part string, in, out, at, total int) linear {
		return linear{weight: m.param(name + part + ".weight"), bias: m.param(name + part + ".bias"), conv: true,
			in: in, out: out, at: at, total: total}
	}
	a.norm = norm{m.param(name + "ln_1.weight"), m.param(name + "ln_1.bias")}
	for i := range 3 {
		a.qkv = append(a.qkv, project("attn.c_attn", c.Dim, c.Dim, i*c.Dim, 3*c.Dim))
	}
	a.out = []linear{project("attn.c_proj", c.Dim, c.Dim, 0, c.Dim)}
	p.norm = norm{m.param(name + "ln_2.weight"), m.param(name + "ln_2.bias")}
	up := project("mlp.c_fc", c.Dim, c.Hidden, 0, c.Hidden)
	p.bias, up.bias = up.bias, nil
	p.in = []linear{up}
	p.down = []linear{project("mlp.c_proj", c.Hidden, c.Dim, 0, c.Dim)}
}

// firstTrained returns the first stage whose input needs a gradient: the stages before it and
// the embedding are frozen.
func (m *Model) firstTrained() int {
	if m.table.Trains || m.positions != nil && m.positions.Trains {
		return 0
	}
	for i, s := range m.chain.Stages {
		if s.(interface{ trains() bool }).trains() {
			return i
		}
	}
	return len(m.chain.Stages)
}

func (n norm) trains() bool {
	return n.weight != nil && n.weight.Trains || n.bias != nil && n.bias.Trains
}

func anyTrains(layers []linear) bool {
	for i := range layers {
		if l := &layers[i]; l.weight.Trains || l.bias != nil && l.bias.Trains {
			return true
		}
	}
	return false
}

// perceptronHalf is y = z + down(act(gate·g)·up·g).
type perceptronHalf struct {
	*Model
	index    int
	norm     norm
	in, down []linear // in: gate and up, or up alone
	bias     *Param   // of up without a gate
	post     norm     // of the output, without weights if there is none
}

func (b *perceptronHalf) trains() bool {
	return b.norm.trains() || b.post.trains() || anyTrains(b.in) || anyTrains(b.down) || b.bias != nil && b.bias.Trains
}

// project computes gate and up from the normalized input; gate is nil if there is none.
func (b *perceptronHalf) project(o *ops, s stats, x *tensor) (gate, up *tensor) {
	h := o.get(b.config.Dim)
	o.norm(h, s, x, b.norm)
	if b.config.Gated {
		gate = o.get(b.config.Hidden)
		o.linear(gate, h, &b.in[0], 0)
	}
	up = o.get(b.config.Hidden)
	o.linear(up, h, &b.in[len(b.in)-1], 0)
	b.pool.put(h)
	return gate, up
}

func (b *perceptronHalf) Forward(_ context.Context, x *tensor) (*tensor, error) {
	o := b.stage()
	gate, up := b.project(o, stats{}, x)
	o.activate(up, gate, up, b.bias)
	b.pool.put(gate)
	y := o.get(b.config.Dim)
	o.leave(y, x, up, &b.down[0], b.post, nil)
	b.pool.put(up)
	return y, o.err
}

// Resave leaves out the activation and the last product, unless its norm needs them.
func (b *perceptronHalf) Resave(ctx context.Context, x *tensor) (*saved, error) {
	if b.post.weight != nil {
		_, s, err := b.ForwardSave(ctx, x)
		return s, err
	}
	o := b.stage()
	return b.save(o, x), o.err
}

// save computes all but the output, for which it only makes room.
func (b *perceptronHalf) save(o *ops, x *tensor) *saved {
	s := b.newSaved()
	s.y, s.norm = o.get(b.config.Dim), o.stats(b.norm)
	o.keepPost(s, b.post)
	s.gate, s.up = b.project(o, s.norm, x)
	return s
}

func (b *perceptronHalf) ForwardSave(_ context.Context, x *tensor) (*tensor, *saved, error) {
	o := b.stage()
	s := b.save(o, x)
	act := o.get(b.config.Hidden)
	o.activate(act, s.gate, s.up, b.bias)
	o.leave(s.y, x, act, &b.down[0], b.post, s)
	b.pool.put(act)
	return s.y, s, o.err
}

// Backward turns the gradient of y, in place, into the gradient of x.
func (b *perceptronHalf) Backward(_ context.Context, x *tensor, s *saved, d *tensor) (*tensor, error) {
	if b.index < b.first {
		return d, nil
	}
	o := b.stage()
	act := o.get(b.config.Hidden)
	if b.down[0].weight.Trains {
		o.activate(act, s.gate, s.up, b.bias)
	}
	dout := o.leaveBackward(d, b.post, s)
	o.weightGradients(act, b.down, dout)
	o.inputGradient(act, dout, &b.down[0], 0) // now the gradient of the activation's output
	if dout != d {
		b.pool.put(dout)
	}
	o.activateBackward(act, s.gate, s.up, b.bias)
	b.pool.put(act)
	h := o.get(b.config.Dim)
	if anyTrains(b.in) {
		o.norm(h, stats{}, x, b.norm)
	}
	if s.gate == nil {
		o.weightGradients(h, b.in, s.up)
		o.inputGradient(h, s.up, &b.in[0], 0)
	} else {
		o.weightGradients(h, b.in, s.gate, s.up)
		o.inputGradient(h, s.gate, &b.in[0], 0)
		o.inputGradient(h, s.up, &b.in[1], 1)
	}
	o.normBackward(d, h, s.norm, x, b.norm, 1)
	b.pool.put(h)
	return d, o.err
}
