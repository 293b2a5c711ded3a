package transformer

import (
	"context"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/attention"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/meter"
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
