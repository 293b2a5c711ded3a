package transformer

import (
	"context"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/fused"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
	"github.com/snug-ml/snug/quant8"
	"github.com/snug-ml/snug/remat"
)

type (
	tensor = layers.Tensor
	saved  = layers.Saved
	linear = layers.Linear
)

// A layer is two stages of the chain, so that a plan can keep or recompute each half by itself, or one where both halves read x:
//
//	z = x + out(attention(rope(norm(q·h)), rope(norm(k·h)), v·h))   h = norm(x)
//	y = z + down(act(gate·g)·up·g)                                  g = norm(z)
//
// The halves are blocks of package layers.

// half is what a stage computes.
type half interface {
	layers.Layer
	layers.Resaver
}

// attends is a half that sees other rows, step by step, as generating goes through it.
type attends interface {
	half
	Query(p *layers.Pass, x *tensor) (q, k, v *tensor)
	Options(p *layers.Pass) attention.Options
	Leave(p *layers.Pass, x, att *tensor) *tensor
}

// stage is a stage of the chain. The first one begins with the embedding, so that nothing holds x while other stages
// compute.
type stage struct {
	*Model
	index int
	half
}

// begins begins the operations of a stage of the chain.
func (m *Model) begins(ctx context.Context, index int, phase meter.Phase) *layers.Pass {
	m.enter(index, phase)
	return m.pass.Start(ctx)
}

// begin returns the input of the stage, and end frees what begin made.
func (s *stage) begin(ctx context.Context, phase meter.Phase, x *tensor) (*layers.Pass, *tensor) {
	p := s.begins(ctx, s.index, phase)
	if s.index == 0 {
		x = s.table.Forward(p, nil)
	}
	return p, x
}

func (s *stage) end(p *layers.Pass, x *tensor) error {
	if s.index == 0 {
		p.Put(x)
	}
	return p.Err
}

func (s *stage) Forward(ctx context.Context, x *tensor) (*tensor, error) {
	p, x := s.begin(ctx, s.forwardPhase(), x)
	y := s.half.Forward(p, x)
	s.vectors().AddTo(p, y)
	return y, s.end(p, x)
}

func (s *stage) ForwardSave(ctx context.Context, x *tensor) (*tensor, saved, error) {
	p, x := s.begin(ctx, s.forwardPhase(), x)
	y, kept := s.half.ForwardSave(p, x)
	s.vectors().AddTo(p, y)
	return y, kept, s.end(p, x)
}

// vectors returns what the batch adds to the output of the stage.
func (s *stage) vectors() layers.Embeddings {
	if i, n := s.index/s.config.halves(), s.config.halves(); s.index%n == n-1 && i < len(s.added) {
		return s.added[i]
	}
	return layers.Embeddings{}
}

func (s *stage) Resave(ctx context.Context, x *tensor) (saved, error) {
	p, x := s.begin(ctx, s.forwardPhase(), x)
	kept := s.half.Resave(p, x)
	return kept, s.end(p, x)
}

// Backward turns the gradient of the output, in place, into the gradient of x. That of the first stage goes to the
// embedding.
func (s *stage) Backward(ctx context.Context, x *tensor, kept saved, d *tensor) (*tensor, error) {
	p := s.begins(ctx, s.index, meter.Backward)
	s.vectors().TakeGrad(p, d)
	if s.index >= s.lowest() {
		p, x = s.begin(ctx, meter.Backward, x)
		d = s.half.Backward(p, x, kept, d)
		s.end(p, x)
	}
	if s.index > 0 {
		return d, p.Err
	}
	return s.table.Backward(p, &s.input, nil, d), p.Err
}

// cost returns the costs of a batch of so many sequences of so many tokens, see [Model.Costs].
func (s *stage) cost(sequences, tokens int) (c remat.Cost) {
	rows := int64(sequences) * int64(tokens)
	c = s.pass.Cost(s.half, s.config.widthOf(s.index), layers.Batch{Rows: int(rows), Sequences: sequences, Longest: tokens})
	c.ForwardTime, c.BackwardTime = s.times(rows, tokens)
	if s.index == 0 {
		// It makes its input: it holds the embedding, and its gradient, which is no other stage's.
		made := rows * int64(s.config.Dim) * int64(s.dtype.Size())
		c.ForwardExtra += made
		c.BackwardExtra += 2 * made
	}
	return c
}

// widthOf returns the elements of a row that enters a stage: for the first and the one behind the last they are a row of the embedding.
func (c *Config) widthOf(stage int) int {
	if stage > 0 && stage < c.Layers*c.halves() {
		return max(1, c.AltUp.Streams) * c.Dim
	}
	return c.Dim
}

// times returns the 10⁹ multiply-adds of a stage.
func (s *stage) times(rows int64, tokens int) (forward, backward float64) {
	c, giga := &s.config, float64(rows)/1e9
	attention := giga * (float64(c.Dim*(2*c.Heads+2*c.KVHeads)*c.HeadDim) + float64(tokens)*float64(c.Heads*c.HeadDim))
	switch s.half.(type) {
	case *layers.Attention:
		c = c.of(s.index / c.halves())
		attention = giga * (float64(c.Dim*(2*c.Heads+2*c.KVHeads)*c.HeadDim) + float64(tokens)*float64(c.Heads*c.HeadDim))
		return attention, 2.5 * attention
	case *layers.Latent:
		d := &c.Latent
		inner, q := float64(d.Rank+d.RopeDim+c.Heads*d.ValueDim), float64(c.Heads*c.HeadDim)
		forward = giga * (inner*float64(c.Dim) + float64(d.Rank*c.Heads)*float64(d.KeyDim+d.ValueDim) + float64(tokens)*float64(c.Heads*(c.HeadDim+d.ValueDim))/2)
		if d.QueryRank > 0 {
			forward += giga * float64(d.QueryRank) * (float64(c.Dim) + q)
		} else {
			forward += giga * q * float64(c.Dim)
		}
		return forward, 2.5 * forward
	case *layers.Parallel:
		if c.Mamba.Beside {
			mixed := giga * float64(c.mixer(s.index/2).work(c))
			return mixed + attention, 2*mixed + 2.5*attention
		}
	case mixing:
		forward = giga * float64(c.mixer(s.index/2).work(c))
		return forward, 2 * forward
	case *layers.AltUp:
		forward = attention + giga*float64(c.Dim)*float64(3*c.Hidden+2*c.AltUp.Rank+3*c.PerLayer+c.AltUp.Streams*c.AltUp.Streams)
		return forward, 2.5 * forward
	case *layers.Experts:
		forward = giga * float64(c.Dim) * float64(3*(c.Experts.Chosen*c.Experts.Hidden+c.Experts.Shared)+c.Experts.Count)
		return forward, 3 * forward
	case *layers.Beside:
		forward = giga * float64(c.Dim) * float64(3*(c.Experts.Chosen*c.Experts.Hidden+c.Hidden)+c.Experts.Count)
		return forward, 3 * forward
	}
	c = c.of(s.index / 2)
	matrices := 2
	if c.Gated {
		matrices = 3
	}
	forward = giga * float64(matrices) * float64(c.Dim) * float64(c.Hidden)
	backward = 2 * forward
	if c.Parallel {
		return forward + attention, backward + 2.5*attention
	}
	if s.options.Tiles > 1 { // which computes gate and up again
		backward += forward
	}
	return forward, backward
}

// makeStages makes the chain and the norms and matrices of its stages.
func (m *Model) makeStages() {
	c := &m.config
	m.matrices = map[*Param]*linear{}
	if m.chain = m.pass.Chain(); m.options.Checkpoints != nil {
		m.chain.Store = m.store
	}
	m.table = layers.Embedding{Table: m.param(c.embedding()), Scale: float32(c.EmbeddingScale)}
	if c.LearnedPositions {
		m.table.Positions = m.param(c.positions())
	}
	for i := range c.Layers {
		switch {
		case c.Parallel:
			m.stages = append(m.stages, &stage{m, i, m.parallelLayer(i)})
			continue
		case c.AltUp.Streams > 0:
			m.stages = append(m.stages, &stage{m, i, m.altUpLayer(i)})
			continue
		}
		first := &stage{m, 2 * i, nil}
		if x := c.mixer(i); x != nil {
			first.half = x.layer(m, c.block(i))
			if c.Mamba.Beside {
				first.half = m.hybridLayer(i)
			}
		} else {
			first.half = m.attentionLayer(i)
		}
		m.stages = append(m.stages, first)
		if c.hasExperts(i) {
			m.stages = append(m.stages, &stage{m, 2*i + 1, m.scaled(i, m.besideLayer(i, m.expertsLayer(i)))})
		} else {
			m.stages = append(m.stages, &stage{m, 2*i + 1, m.scaled(i, m.mlpLayer(i))})
		}
	}
	for _, s := range m.stages {
		m.chain.Stages = append(m.chain.Stages, s)
	}
	m.last = m.norm(c.names().norm)
	if m.head = m.table.Table; !c.Tied {
		m.head = m.index[c.layout().head]
	}
	m.first = m.firstTrained()
}

// norm returns the norm of a name without the prefix of the family, the identity if the name is empty.
func (m *Model) norm(name string) layers.Norm {
	body := m.config.layout().body + name
	return layers.Norm{Weight: m.index[body+".weight"], Bias: m.index[body+".bias"], Eps: float32(m.config.NormEps), PlusOne: m.config.NormPlusOne,
		Centered: m.config.NoNormBias}
}

// normalize computes the norm of the last stage's output times LogitScale, which head·norm(y) then has.
func (m *Model) normalize(o *layers.Pass, out *tensor, s layers.Stats, y *tensor) {
	m.last.Compute(o, out, s, y)
	m.scaleLogits(o, out)
}

func (m *Model) scaleLogits(o *layers.Pass, h *tensor) {
	scale := float32(m.config.LogitScale)
	if scale == 0 || scale == 1 {
		return
	}
	o.Do(func() error { // a product whose inner dimension is 0
		return amp.MatMul(h.View, part(h.View, 0, 0), part(h.View, 0, 0), amp.MatMulOptions{M: 1, N: h.Len(), Into: snug.Into{Beta: scale}})
	})
}

// addLayers adds linear layers to the model's list, and sets their adapters.
func (m *Model) addLayers(lists ...[]linear) {
	for _, list := range lists {
		for i := range list {
			l := &list[i]
			if a := m.byModule[l.Weight.Name]; a != nil {
				l.Adapter = &a.Adapter
			}
			m.layers = append(m.layers, l)
			m.matrices[l.Weight] = l
		}
	}
}

// linear returns a linear layer by its name without the prefix of the family.
func (m *Model) linear(name string, in, out int) linear {
	return linear{Weight: m.param(name + ".weight"), Bias: m.index[m.config.layout().body+name+".bias"], In: in, Out: out, Transposed: m.conv()}
}

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

// keyValues returns the keys and values of a layer that others read, and has the layer keep them.
func (m *Model) keyValues(layer int) *layers.KeyValues {
	var a *layers.Attention
	switch b := m.stages[m.config.halves()*layer].half.(type) {
	case *layers.Attention:
		a = b
	case *layers.AltUp:
		a = b.Attention
	}
	if a.Keeps == nil {
		a.Keeps = &layers.KeyValues{}
		m.keeps = append(m.keeps, keyValues{a.Keeps, a.KVHeads * a.HeadDim})
	}
	return a.Keeps
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

// lowest returns the first stage whose backward step computes, for this batch.
func (m *Model) lowest() int {
	if m.pass.Batch.Embeddings.Grad.Len() > 0 {
		return 0
	}
	for i, e := range m.added {
		if e.Grad.Len() > 0 {
			return min(m.first, m.config.halves()*(i+1))
		}
	}
	return m.first
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
