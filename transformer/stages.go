package transformer

import (
	"context"
	"fmt"

	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/remat"
)

// A layer is two stages of the chain, so that a plan can keep or recompute each half by itself:
//
//	z = x + out(attention(rope(norm(q·h)), rope(norm(k·h)), v·h))   h = norm(x)
//	y = z + down(act(gate·g)·up·g)                                  g = norm(z)
//
// The backward steps need the inputs of the halves, q, k, v and the output of attention, and the inputs of the
// activation. They recompute the normalized inputs and the activation's output, which is cheap. The gradients of gate
// and up are written over gate and up.

// saved is what a stage keeps for its backward step.
type saved struct {
	y        *tensor
	norm     stats
	q, k, v  *tensor // q and k before their norms, if they have norms, or after the rope
	att, lse *tensor
	gate, up *tensor
	half     *tensor // input of the norm after the half, if there is one
	post     stats
	logits   *tensor // of a router
}

func (s *saved) tensors() [13]*tensor {
	return [...]*tensor{s.y, s.norm.mean, s.norm.rstd, s.q, s.k, s.v, s.att, s.lse, s.gate, s.up, s.half, s.post.rstd, s.logits}
}

func savedBytes(s *saved) (sum int64) {
	for _, t := range s.tensors() {
		if t != nil {
			sum += int64(t.Bytes())
		}
	}
	return sum
}

// newSaved returns an empty set, a freed one if there is any.
func (m *Model) newSaved() *saved {
	n := len(m.sets)
	if n == 0 {
		return &saved{}
	}
	s := m.sets[n-1]
	m.sets = m.sets[:n-1]
	return s
}

// keepPost allocates in s what the norm after a half keeps.
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
	m.matrices = map[*Param]*linear{}
	m.chain = &remat.Chain[*tensor, *saved]{
		Bytes:        func(t *tensor) int64 { return int64(t.Bytes()) },
		SavedBytes:   savedBytes,
		Release:      func(t *tensor) { m.pool.put(t) },
		ReleaseSaved: m.releaseSaved,
	}
	if m.options.Checkpoints != nil {
		m.chain.Store = m.store
	}
	for i := range c.Layers {
		a := &attentionHalf{Model: m, index: 2 * i, window: c.Windows[i]}
		switch {
		case len(m.ropes) == 2 && a.window > 0:
			a.angles = m.ropes[1]
		case len(m.ropes) > 0:
			a.angles = m.ropes[0]
		}
		p := &mlpHalf{Model: m, index: 2*i + 1}
		switch name := fmt.Sprintf("layers.%d.", i); {
		case c.Family == "gpt2":
			m.gpt2Layer(fmt.Sprintf("h.%d.", i), a, p)
		case c.hasExperts(i):
			m.llamaAttention(name, a)
			m.addLayers(a.qkv, a.out)
			m.chain.Stages = append(m.chain.Stages, a, m.expertsLayer(name, 2*i+1))
			continue
		default:
			m.llamaAttention(name, a)
			m.llamaMLP(name, a, p)
		}
		m.addLayers(a.qkv, a.out, p.in, p.down)
		m.chain.Stages = append(m.chain.Stages, a, p)
	}
	m.table = m.param(c.embedding())
	if c.LearnedPositions {
		m.positions = m.param(c.positions())
	}
	if m.last = m.norm("norm"); c.Family == "gpt2" {
		m.last = m.norm("ln_f")
	}
	if m.head = m.table; !c.Tied {
		m.head = m.index[c.layout().head]
	}
	m.first = m.firstTrained()
}

// norm returns the norm of a name without the prefix of the family, without weights if there is none.
func (m *Model) norm(name string) norm {
	body := m.config.layout().body + name
	return norm{m.index[body+".weight"], m.index[body+".bias"]}
}

// addLayers adds linear layers to the model's list, and sets their adapters.
func (m *Model) addLayers(lists ...[]linear) {
	for _, list := range lists {
		for i := range list {
			l := &list[i]
			l.adapter = m.byModule[l.weight.Name]
			m.layers = append(m.layers, l)
			m.matrices[l.weight] = l
		}
	}
}

// linear returns a linear layer by its name without the prefix of the family.
func (m *Model) linear(name string, in, out int) linear {
	return linear{weight: m.param(name + ".weight"), bias: m.index[m.config.layout().body+name+".bias"], in: in, out: out}
}

// llamaAttention fills the first stage of a layer whose parameters have the names of Llama.
func (m *Model) llamaAttention(name string, a *attentionHalf) {
	c := &m.config
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	project := func(part string, in, out int) linear { return m.linear(name+part, in, out) }
	a.norm = m.norm(name + "input_layernorm")
	if c.PackedQKV {
		a.qkv = []linear{project("self_attn.qkv_proj", c.Dim, queries+2*keys)}
	} else {
		a.qkv = []linear{
			project("self_attn.q_proj", c.Dim, queries), project("self_attn.k_proj", c.Dim, keys), project("self_attn.v_proj", c.Dim, keys),
		}
	}
	a.qNorm, a.kNorm, a.sinks = m.norm(name+"self_attn.q_norm"), m.norm(name+"self_attn.k_norm"), m.index[c.layout().body+name+sinks]
	a.out = []linear{project("self_attn.o_proj", queries, c.Dim)}
}

// llamaMLP fills the second stage of a layer whose parameters have the names of Llama.
func (m *Model) llamaMLP(name string, a *attentionHalf, p *mlpHalf) {
	c := &m.config
	p.norm = m.norm(name + "post_attention_layernorm")
	if c.PostNorms { // post_attention_layernorm is then the norm after the first half
		a.post, p.norm = p.norm, m.norm(name+"pre_feedforward_layernorm")
		p.post = m.norm(name + "post_feedforward_layernorm")
	}
	up := m.linear(name+"mlp.up_proj", c.Dim, c.Hidden)
	if c.Gated {
		p.in = []linear{m.linear(name+"mlp.gate_proj", c.Dim, c.Hidden), up}
	} else { // the bias is a part of the activation
		p.bias, up.bias = up.bias, nil
		p.in = []linear{up}
	}
	p.down = []linear{m.linear(name+"mlp.down_proj", c.Hidden, c.Dim)}
}

// gpt2Layer fills the stages of a layer of GPT-2. The bias before GELU is a part of the
// activation.
func (m *Model) gpt2Layer(name string, a *attentionHalf, p *mlpHalf) {
	c := &m.config
	project := func(part string, in, out int) linear {
		return linear{weight: m.param(name + part + ".weight"), bias: m.param(name + part + ".bias"), conv: true, in: in, out: out}
	}
	a.norm = m.norm(name + "ln_1")
	a.qkv = []linear{project("attn.c_attn", c.Dim, 3*c.Dim)}
	a.out = []linear{project("attn.c_proj", c.Dim, c.Dim)}
	p.norm = m.norm(name + "ln_2")
	up := project("mlp.c_fc", c.Dim, c.Hidden)
	p.bias, up.bias = up.bias, nil
	p.in = []linear{up}
	p.down = []linear{project("mlp.c_proj", c.Hidden, c.Dim)}
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
		if l := &layers[i]; l.adapter != nil || l.weight.Trains || l.bias != nil && l.bias.Trains {
			return true
		}
	}
	return false
}

// mlpHalf is y = z + down(act(gate·g)·up·g).
type mlpHalf struct {
	*Model
	index    int
	norm     norm
	in, down []linear // in: gate and up, or up alone
	bias     *Param   // of up without a gate
	post     norm     // of the output, without weights if there is none
}

func (b *mlpHalf) trains() bool {
	return b.norm.trains() || b.post.trains() || anyTrains(b.in) || anyTrains(b.down) || b.bias != nil && b.bias.Trains
}

// project computes gate and up from the normalized input; gate is nil if there is none.
func (b *mlpHalf) project(o *ops, s stats, x *tensor) (gate, up *tensor) {
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

func (b *mlpHalf) Forward(ctx context.Context, x *tensor) (*tensor, error) {
	o := b.begins(b.index, b.forwardPhase())
	if b.tiled() {
		y := o.get(b.config.Dim)
		return y, b.forwardTiles(ctx, o, y, x)
	}
	gate, up := b.project(o, stats{}, x)
	o.activate(up, gate, up, b.bias)
	b.pool.put(gate)
	y := o.get(b.config.Dim)
	o.leave(y, x, up, &b.down[0], b.post, nil)
	b.pool.put(up)
	return y, o.err
}

// Resave leaves out the activation and the last product, unless its norm needs them. With tiles it leaves out all.
func (b *mlpHalf) Resave(ctx context.Context, x *tensor) (*saved, error) {
	o := b.begins(b.index, b.forwardPhase())
	s := b.newSaved()
	s.y = o.get(b.config.Dim)
	switch {
	case b.tiled():
	case b.post.weight == nil:
		b.save(o, s, x)
	default:
		b.saveAll(o, s, s.y, x)
	}
	return s, o.err
}

// save computes everything except the output.
func (b *mlpHalf) save(o *ops, s *saved, x *tensor) {
	s.norm = o.stats(b.norm)
	o.keepPost(s, b.post)
	s.gate, s.up = b.project(o, s.norm, x)
}

// saveAll also computes the output y.
func (b *mlpHalf) saveAll(o *ops, s *saved, y, x *tensor) {
	b.save(o, s, x)
	act := o.get(b.config.Hidden)
	o.activate(act, s.gate, s.up, b.bias)
	o.leave(y, x, act, &b.down[0], b.post, s)
	b.pool.put(act)
}

func (b *mlpHalf) ForwardSave(ctx context.Context, x *tensor) (*tensor, *saved, error) {
	o := b.begins(b.index, b.forwardPhase())
	s := b.newSaved()
	s.y = o.get(b.config.Dim)
	if b.tiled() {
		return s.y, s, b.forwardTiles(ctx, o, s.y, x)
	}
	b.saveAll(o, s, s.y, x)
	return s.y, s, o.err
}

// forwardTiles computes y tile by tile.
func (b *mlpHalf) forwardTiles(ctx context.Context, o *ops, y, x *tensor) error {
	return o.eachTile(ctx, func() {
		y, x := o.rows(&o.tile.y, y), o.rows(&o.tile.x, x)
		gate, up := b.project(o, stats{}, x)
		o.activate(up, gate, up, b.bias)
		b.pool.put(gate)
		o.leave(y, x, up, &b.down[0], b.post, nil)
		b.pool.put(up)
	})
}

// Backward turns the gradient of y, in place, into the gradient of x.
func (b *mlpHalf) Backward(ctx context.Context, x *tensor, s *saved, d *tensor) (*tensor, error) {
	if b.index < b.first {
		return d, nil
	}
	o := b.begins(b.index, plan.Backward)
	if !b.tiled() {
		b.backward(o, x, s, d)
		return d, o.err
	}
	return d, o.eachTile(ctx, func() {
		x, d := o.rows(&o.tile.x, x), o.rows(&o.tile.d, d)
		s := b.newSaved()
		if b.post.weight == nil {
			b.save(o, s, x)
		} else {
			y := o.get(b.config.Dim)
			b.saveAll(o, s, y, x)
			b.pool.put(y)
		}
		b.backward(o, x, s, d)
		b.releaseSaved(s)
	})
}

func (b *mlpHalf) backward(o *ops, x *tensor, s *saved, d *tensor) {
	act := o.get(b.config.Hidden)
	if b.down[0].adapter != nil || b.down[0].weight.Trains {
		o.activate(act, s.gate, s.up, b.bias)
	}
	dout := o.leaveBackward(d, b.post, s)
	dact := o.linearBackward(act, b.down, dout) // the gradient of the activation's output
	if dout != d {
		b.pool.put(dout)
	}
	o.activateBackward(dact, s.gate, s.up, b.bias)
	b.pool.put(dact)
	h := o.get(b.config.Dim)
	if anyTrains(b.in) {
		o.norm(h, stats{}, x, b.norm)
	}
	var dh *tensor
	if s.gate == nil {
		dh = o.linearBackward(h, b.in, s.up)
	} else {
		dh = o.linearBackward(h, b.in, s.gate, s.up)
	}
	o.normBackward(d, dh, s.norm, x, b.norm, 1)
	b.pool.put(dh)
}
