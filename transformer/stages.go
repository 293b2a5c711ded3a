package transformer

import (
	"context"
	"slices"

	"github.com/snug-ml/snug/meter"
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

// saved is what a stage keeps for its backward step. Each kind of stage has a type of its own.
type saved interface {
	// tensors appends all tensors that the set can have, nil for those that it does not.
	tensors(list []*tensor) []*tensor
}

// stage is a stage of the chain.
type stage interface {
	remat.Stage[*tensor, saved]
	cost(sequences, tokens int) remat.Cost // of a batch, see [Model.Costs]
}

// halfSaved is what the stages of all kinds keep.
type halfSaved struct {
	y    *tensor
	norm stats
	half *tensor // input of the norm after the half, if there is one
	post stats
}

func (s *halfSaved) tensors(list []*tensor) []*tensor {
	return append(list, s.y, s.norm.mean, s.norm.rstd, s.half, s.post.mean, s.post.rstd)
}

func (m *Model) savedBytes(s saved) (sum int64) {
	m.kept = s.tensors(m.kept[:0])
	for _, t := range m.kept {
		if t != nil {
			sum += int64(t.Bytes())
		}
	}
	return sum
}

// newSaved returns an empty set of type S, a freed one if there is any.
func newSaved[S any, P interface {
	*S
	saved
}](m *Model) P {
	at := slices.IndexFunc(m.sets, func(s saved) bool { _, is := s.(P); return is })
	if at < 0 {
		return new(S)
	}
	s := m.sets[at].(P)
	m.sets = slices.Delete(m.sets, at, at+1)
	*s = *new(S)
	return s
}

// keepPost allocates in s what the norm after a half keeps.
func (o *ops) keepPost(s *halfSaved, post norm) {
	if post.weight != nil {
		s.half, s.post = o.get(o.config.Dim), o.stats(post)
	}
}

func (m *Model) releaseSaved(s saved) {
	m.kept = s.tensors(m.kept[:0])
	m.pool.put(m.kept...)
	m.sets = append(m.sets, s)
}

// makeStages makes the chain and the norms and matrices of its stages.
func (m *Model) makeStages() {
	c := &m.config
	m.matrices = map[*Param]*linear{}
	m.chain = &remat.Chain[*tensor, saved]{
		Bytes:        func(t *tensor) int64 { return int64(t.Bytes()) },
		SavedBytes:   m.savedBytes,
		Release:      func(t *tensor) { m.pool.put(t) },
		ReleaseSaved: m.releaseSaved,
	}
	if m.options.Checkpoints != nil {
		m.chain.Store = m.store
	}
	for i := range c.Layers {
		m.stages = append(m.stages, m.attentionLayer(i))
		if c.hasExperts(i) {
			m.stages = append(m.stages, m.expertsLayer(i))
		} else {
			m.stages = append(m.stages, m.mlpLayer(i))
		}
	}
	for _, s := range m.stages {
		m.chain.Stages = append(m.chain.Stages, s)
	}
	m.table = m.param(c.embedding())
	if c.LearnedPositions {
		m.positions = m.param(c.positions())
	}
	m.last = m.norm(c.names().norm)
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
	return linear{weight: m.param(name + ".weight"), bias: m.index[m.config.layout().body+name+".bias"], in: in, out: out, conv: m.conv()}
}

// attentionLayer makes the first stage of a layer.
func (m *Model) attentionLayer(layer int) *attentionHalf {
	c, n, block := &m.config, m.config.names(), m.config.block(layer)
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	a := &attentionHalf{Model: m, index: 2 * layer, window: c.Windows[layer], norm: m.norm(block + n.attentionNorm)}
	switch {
	case len(m.ropes) == 2 && a.window > 0:
		a.angles = m.ropes[1]
	case len(m.ropes) > 0:
		a.angles = m.ropes[0]
	}
	if c.packed() {
		a.qkv = []linear{m.linear(block+n.qkv, c.Dim, queries+2*keys)}
	} else {
		a.qkv = []linear{m.linear(block+n.q, c.Dim, queries), m.linear(block+n.k, c.Dim, keys), m.linear(block+n.v, c.Dim, keys)}
	}
	if c.QKNorm {
		a.qNorm, a.kNorm = m.norm(block+n.qNorm), m.norm(block+n.kNorm)
	}
	if c.Sinks {
		a.sinks = m.param(block + n.sinks)
	}
	a.out = []linear{m.linear(block+n.out, queries, c.Dim)}
	if c.PostNorms {
		a.post = m.norm(block + n.attentionPost)
	}
	m.addLayers(a.qkv, a.out)
	return a
}

// mlpLayer makes the second stage of a layer without experts. Without a gate the bias of up is a part of the activation.
func (m *Model) mlpLayer(layer int) *mlpHalf {
	c, n, block := &m.config, m.config.names(), m.config.block(layer)
	p := &mlpHalf{Model: m, index: 2*layer + 1, norm: m.norm(block + n.mlpNorm)}
	if c.PostNorms {
		p.post = m.norm(block + n.mlpPost)
	}
	up := m.linear(block+n.up, c.Dim, c.Hidden)
	if c.Gated {
		p.in = []linear{m.linear(block+n.gate, c.Dim, c.Hidden), up}
	} else {
		p.bias, up.bias = up.bias, nil
		p.in = []linear{up}
	}
	p.down = []linear{m.linear(block+n.down, c.Hidden, c.Dim)}
	m.addLayers(p.in, p.down)
	return p
}

// firstTrained returns the first stage whose input needs a gradient: the stages before it and
// the embedding are frozen.
func (m *Model) firstTrained() int {
	all := m.config.tensorsOf(m.config.layout())
	for i, t := range all.list {
		if m.index[t.Name].Trains || m.byModule[t.Name] != nil {
			return all.stages[i]
		}
	}
	return len(m.stages)
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

type mlpSaved struct {
	halfSaved
	gate, up *tensor
}

func (s *mlpSaved) tensors(list []*tensor) []*tensor {
	return append(s.halfSaved.tensors(list), s.gate, s.up)
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
func (b *mlpHalf) Resave(ctx context.Context, x *tensor) (saved, error) {
	o := b.begins(b.index, b.forwardPhase())
	s := newSaved[mlpSaved](b.Model)
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
func (b *mlpHalf) save(o *ops, s *mlpSaved, x *tensor) {
	s.norm = o.stats(b.norm)
	o.keepPost(&s.halfSaved, b.post)
	s.gate, s.up = b.project(o, s.norm, x)
}

// saveAll also computes the output y.
func (b *mlpHalf) saveAll(o *ops, s *mlpSaved, y, x *tensor) {
	b.save(o, s, x)
	act := o.get(b.config.Hidden)
	o.activate(act, s.gate, s.up, b.bias)
	o.leave(y, x, act, &b.down[0], b.post, &s.halfSaved)
	b.pool.put(act)
}

func (b *mlpHalf) ForwardSave(ctx context.Context, x *tensor) (*tensor, saved, error) {
	o := b.begins(b.index, b.forwardPhase())
	s := newSaved[mlpSaved](b.Model)
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
func (b *mlpHalf) Backward(ctx context.Context, x *tensor, kept saved, d *tensor) (*tensor, error) {
	if b.index < b.first {
		return d, nil
	}
	o := b.begins(b.index, meter.Backward)
	if !b.tiled() {
		b.backward(o, x, kept.(*mlpSaved), d)
		return d, o.err
	}
	return d, o.eachTile(ctx, func() {
		x, d := o.rows(&o.tile.x, x), o.rows(&o.tile.d, d)
		s := newSaved[mlpSaved](b.Model)
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

func (b *mlpHalf) backward(o *ops, x *tensor, s *mlpSaved, d *tensor) {
	act := o.get(b.config.Hidden)
	if b.down[0].adapter != nil || b.down[0].weight.Trains {
		o.activate(act, s.gate, s.up, b.bias)
	}
	dout := o.leaveBackward(d, b.post, &s.halfSaved)
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
