package transformer

import (
	"fmt"
	"math"

	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/quant8"
)

// attentionLayer makes the first half of a layer.
func (m *Model) attentionLayer(layer int) attends {
	if m.config.latent() {
		return m.latentLayer(layer)
	}
	c, n, block := m.config.of(layer), m.config.names(), m.config.block(layer)
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	a := &layers.Attention{
		Norm: m.norm(block + n.attentionNorm), Heads: c.Heads, KVHeads: c.KVHeads, HeadDim: c.HeadDim,
		Scale: c.ScoreScale, Softcap: c.ScoreCap, Window: c.Windows[layer], Plain: m.options.PlainAttention,
		Interleaved: n.interleaved,
	}
	switch {
	case c.NoRope != nil && c.NoRope[layer]:
	case len(m.ropes) == 2 && a.Window > 0:
		a.Rope = m.ropes[1]
	case len(m.ropes) > 0:
		a.Rope = m.ropes[0]
	}
	switch {
	case c.packed():
		a.QKV = []linear{m.linear(block+n.qkv, c.Dim, queries+2*keys)}
	case c.reads(layer):
		a.QKV, a.Reads = []linear{m.linear(block+n.q, c.Dim, queries)}, m.keyValues(c.keysOf(layer))
	case c.Full.KeysAreValues:
		a.QKV = []linear{m.linear(block+n.q, c.Dim, queries), m.linear(block+n.k, c.Dim, keys)}
	default:
		a.Gated = c.OutputGate
		a.QKV = []linear{m.linear(block+n.q, c.Dim, c.queryRows()), m.linear(block+n.k, c.Dim, keys), m.linear(block+n.v, c.Dim, keys)}
	}
	if c.QKNorm {
		a.QNorm = m.norm(block + n.qNorm)
	}
	if c.QKNorm && !c.reads(layer) {
		a.KNorm = m.norm(block + n.kNorm)
	}
	a.NormLast = c.QKNorm && n.normLast
	if c.QKNorm && n.perHead {
		a.QNorm.Groups, a.KNorm.Groups = c.Heads, c.KVHeads
	}
	if c.ValueNorm && !c.reads(layer) {
		a.VNorm = layers.Norm{Unit: c.HeadDim, Eps: float32(c.NormEps)}
	}
	if c.Sinks {
		a.Sinks = m.param(block + n.sinks)
	}
	a.Out = []linear{m.linear(block+n.out, queries, c.Dim)}
	if a.Post.Factor = float32(factor(c.ResidualScale, c.Factors.Attention)); c.PostNorms {
		a.Post = m.norm(block + n.attentionPost)
	}
	m.addLayers(a.QKV, a.Out)
	return a
}

// scaled returns the second half of a layer with the embedding and times the number of the layer, if it has them.
func (m *Model) scaled(layer int, h half) half {
	if m.config.PerLayer > 0 {
		h = m.perLayer(layer, h)
	}
	if !m.config.LayerScalar {
		return h
	}
	return &layers.Scaled{Layer: h, Factor: m.param(m.config.block(layer) + m.config.names().scalar)}
}

// perLayer returns a half with the embedding of its layer.
func (m *Model) perLayer(layer int, h half) *layers.PerLayer {
	c := &m.config
	n, block := &c.names().perLayer, c.block(layer)
	b := &layers.PerLayer{Layer: h, Table: &m.table, Tokens: m.param(n.tokens + ".weight"), Projection: m.param(n.projection + ".weight"),
		Norm: m.norm(n.norm), Post: m.norm(block + n.post), Activation: activations[c.Activation], Index: layer, Count: c.Layers}
	b.Norm.Eps *= float32(c.Dim) // of what transformers divides by the root of Dim before
	b.Gate = []linear{m.linear(block+n.gate, c.Dim, c.PerLayer)}
	b.Out = []linear{m.linear(block+n.out, c.PerLayer, c.Dim)}
	m.addLayers(b.Gate, b.Out)
	return b
}

// altUpLayer makes a layer of streams.
func (m *Model) altUpLayer(layer int) *layers.AltUp {
	c, n, block := &m.config, &m.config.names().altUp, m.config.block(layer)
	streams := c.AltUp.Streams
	b := &layers.AltUp{
		Streams: streams, Active: c.AltUp.Active, RouterNorm: m.norm(block + n.norm), LaurelPost: m.norm(block + n.post), Scale: m.param(block + n.scale),
		Router: m.linear(block+n.router, c.Dim, streams), Predict: m.linear(block+n.predict, streams, streams*streams), Correct: m.linear(block+n.correct, streams, streams),
		Laurel: []linear{m.linear(block+n.left, c.Dim, c.AltUp.Rank), m.linear(block+n.right, c.AltUp.Rank, c.Dim)},
		MLP:    m.mlpLayer(layer), Attention: m.attentionLayer(layer).(*layers.Attention), PerLayer: m.perLayer(layer, nil), // supported refuses Latent
	}
	b.Norm, b.Attention.Norm = b.Attention.Norm, layers.Norm{}
	if c.Sparsity != nil {
		b.MLP.Sparsity = c.Sparsity[layer]
	}
	m.addLayers(b.Laurel)
	projections := func(name string) *layers.Streams {
		l := &layers.Streams{}
		for i := range streams - 1 {
			l.Projections = append(l.Projections, m.linear(fmt.Sprint(name, i), c.Dim, c.Dim))
		}
		m.addLayers(l.Projections)
		return l
	}
	if layer == 0 {
		b.First = projections(n.first)
	}
	if layer == c.Layers-1 {
		b.Last = projections(n.last)
	}
	return b
}

// latentLayer is attentionLayer for a Latent.
func (m *Model) latentLayer(layer int) *layers.Latent {
	c, n, block := &m.config, &m.config.names().latent, m.config.block(layer)
	d := &c.Latent
	inner := func(name string) layers.Norm { // whose epsilon no config.json sets
		return layers.Norm{Weight: m.param(block + name + ".weight"), Eps: 1e-6}
	}
	b := &layers.Latent{
		Norm: m.norm(block + c.names().attentionNorm), Heads: c.Heads, KeyDim: d.KeyDim, RopeDim: d.RopeDim, ValueDim: d.ValueDim,
		Scale: c.ScoreScale, Rope: m.ropes[0], KVNorm: inner(n.norm),
	}
	queries := c.Heads * c.HeadDim
	down := m.linear(block+n.down, c.Dim, d.Rank+d.RopeDim)
	if d.QueryRank > 0 {
		b.In = []linear{m.linear(block+n.queryDown, c.Dim, d.QueryRank), down}
		b.QNorm, b.QUp = inner(n.queryNorm), []linear{m.linear(block+n.queryUp, d.QueryRank, queries)}
	} else {
		b.In = []linear{m.linear(block+c.names().q, c.Dim, queries), down}
	}
	b.Up = []linear{m.linear(block+n.up, d.Rank, c.Heads*(d.KeyDim+d.ValueDim))}
	b.Out = []linear{m.linear(block+c.names().out, c.Heads*d.ValueDim, c.Dim)}
	if c.PostNorms {
		b.Post = m.norm(block + c.names().attentionPost)
	}
	m.addLayers(b.In, b.QUp, b.Up, b.Out)
	return b
}

// keyValues are the keys and values of a layer, and the elements of a row of either.
type keyValues struct {
	*layers.KeyValues
	width int
}

// reserveKeyValues makes memory for those of the batch.
func (m *Model) reserveKeyValues(backward bool) error {
	for _, s := range m.keeps {
		if err := s.Reserve(m.pass, s.width, backward); err != nil {
			return err
		}
	}
	return nil
}

// mlpLayer makes the second half of a layer without experts. Without a gate the bias of up is a part of the activation.
func (m *Model) mlpLayer(layer int) *layers.MLP {
	c, n, block := m.config.of(layer), m.config.names(), m.config.block(layer)
	b := &layers.MLP{Activation: activations[c.Activation]}
	if !c.OneNorm {
		b.Norm = m.norm(block + n.mlpNorm)
	}
	b.GateFactor = float32(c.Factors.Gate)
	if b.Post.Factor = float32(factor(c.ResidualScale, c.Factors.MLP)); c.PostNorms {
		b.Post = m.norm(block + n.mlpPost)
	}
	switch {
	case n.gateUp != "":
		b.Joined, b.In = true, []linear{m.linear(block+n.gateUp, c.Dim, 2*c.Hidden)}
	case c.Gated:
		b.In = []linear{m.linear(block+n.gate, c.Dim, c.Hidden), m.linear(block+n.up, c.Dim, c.Hidden)}
	default:
		up := m.linear(block+n.up, c.Dim, c.Hidden)
		b.Bias, up.Bias = up.Bias, nil
		b.In = []linear{up}
	}
	b.Down = []linear{m.linear(block+n.down, c.Hidden, c.Dim)}
	m.addLayers(b.In, b.Down)
	return b
}

// parallelLayer makes a layer whose halves read the same rows.
func (m *Model) parallelLayer(layer int) *layers.Parallel {
	a := m.attentionLayer(layer).(*layers.Attention) // supported refuses others
	b := &layers.Parallel{Attention: a, MLP: m.mlpLayer(layer)}
	if m.config.OneNorm {
		b.Norm, a.Norm = a.Norm, layers.Norm{}
	}
	return b
}

// expertsLayer makes the second half of a layer with experts.
func (m *Model) expertsLayer(layer int) *layers.Experts {
	c, n, block := &m.config, &m.config.names().experts, m.config.block(layer)
	b := &layers.Experts{
		Norm: m.norm(block + m.config.names().mlpNorm), Router: m.linear(block+n.router, c.Dim, c.Experts.Count),
		Routing: c.router(), FloatLogits: n.floatLogits, Activation: activations[c.Activation], Balance: &m.balance, WeighInput: c.Experts.WeighInput,
	}
	if c.Experts.Clamped {
		b.Activation = layers.ClampedSwiGLU(float32(c.Experts.Alpha), float32(c.Experts.Limit))
	}
	keys := make([][]string, c.Experts.Count) // of the matrices of an expert in Options.Pages
	for i := range keys {
		matrix := func(part string, in, out int) linear {
			l := m.linear(block+n.of(i, part), in, out)
			keys[i] = append(keys[i], pageKey(l.Weight))
			return l
		}
		e := layers.Expert{In: []linear{matrix(n.gate, c.Dim, c.Experts.Hidden), matrix(n.up, c.Dim, c.Experts.Hidden)}}
		e.Down = []linear{matrix(n.down, c.Experts.Hidden, c.Dim)}
		m.addLayers(e.In, e.Down)
		b.Experts = append(b.Experts, e)
	}
	if c.Experts.Corrected {
		b.Correction = m.param(block + n.correction)
	}
	if w := c.Experts.Shared; w > 0 {
		s := &layers.SharedExpert{
			In:   []linear{m.linear(block+n.shared+"."+n.gate, c.Dim, w), m.linear(block+n.shared+"."+n.up, c.Dim, w)},
			Down: []linear{m.linear(block+n.shared+"."+n.down, w, c.Dim)},
		}
		m.addLayers(s.In, s.Down)
		if c.Experts.SharedGate {
			gate := []linear{m.linear(block+n.sharedGate, c.Dim, 1)}
			m.addLayers(gate)
			s.Gate = &gate[0]
		}
		b.Shared = s
	}
	if p, is := m.options.Pages.(quant8.Prefetcher); is {
		b.Prefetch = func(expert int) { p.Prefetch(keys[expert]...) }
	}
	return b
}

// besideLayer returns the experts with the MLP beside them, if they have one.
func (m *Model) besideLayer(layer int, e *layers.Experts) half {
	c, n, block := &m.config, &m.config.names().experts.besides, m.config.block(layer)
	if !c.Experts.Beside {
		return e
	}
	b := &layers.Beside{Experts: e, MLP: m.mlpLayer(layer)}
	b.Post, b.MLP.Post = b.MLP.Post, m.norm(block+n.mlpPost)
	e.Norm, e.Post, e.Scales = m.norm(block+n.norm), m.norm(block+n.post), m.param(block+n.scales)
	e.RouterNorm, e.RouterScale = layers.Norm{Weight: m.param(block + n.scale), Eps: float32(c.NormEps)}, float32(1/math.Sqrt(float64(c.Dim)))
	return b
}

// router returns the description of the router for package fused.
func (c *Config) router() fused.Router {
	e := &c.Experts
	return fused.Router{
		Experts: e.Count, Chosen: e.Chosen, Sigmoid: e.Sigmoid, Normalize: e.Normalize, Scale: float32(e.Scale),
		Groups: e.Groups, ChosenGroups: e.ChosenGroups, GroupTop: e.GroupTop,
	}
}

var activations = map[Activation]layers.Activation{SiLU: layers.SiLU, GELUTanh: layers.GELUTanh, GELU: layers.GELU, ReLU2: layers.SquaredReLU}
