package transformer

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/layers"
	"github.com/snug-ml/snug/plan"
)

// Plan describes the model to package plan, which predicts the memory of training it and finds what fits. A sample is a
// sequence of so many tokens, which may be more than Config.Context unless there are learned positions.
//
// The layers are the stages of [Model.Costs], with their bytes. Attention is always tiled, whatever a [plan.Run] says;
// for Options.PlainAttention clear Tiled of all layers. The parameters have the shapes of [Config.Tensors], with every
// matrix as [out, in], also for GPT-2. A [plan.Task] with a Rank puts adapters on the matrices of the layers, as PEFT's
// "all-linear" does.
//
// If Config.Stored is not 0, the matrices of Config.Floats stay in floats, as [Open] has them with Options.Base 0. For a
// Base of that form, which quantizes them too, clear Floats of all layers.
//
// The error wraps [snug.ErrConfig] for a Config that is not valid or that [New] does not support, or whose Floats are not
// matrices of the layers, and [snug.ErrShape]
// for more tokens than the model has positions and for a model that is too large for package plan.
func (c *Config) Plan(tokens int) (_ plan.Model, err error) {
	defer fault.Named(&err, "transformer: Plan")
	if err := c.check(); err != nil {
		return plan.Model{}, err
	}
	if err := c.supported(); err != nil {
		return plan.Model{}, err
	}
	switch {
	case tokens < 1 || tokens > maxCount:
		return plan.Model{}, fmt.Errorf("sequences of %d tokens, want 1 to %d: %w", tokens, maxCount, snug.ErrShape)
	case c.LearnedPositions && tokens > c.Context:
		return plan.Model{}, fmt.Errorf("sequences of %d tokens, and the model has %d positions: %w", tokens, c.Context, snug.ErrShape)
	}
	s := c.sizes(tokens)
	m := plan.Model{
		Name: c.Family, Context: tokens, Params: [][]int{{c.Vocab, c.Dim}},
		Head: plan.Head{Tied: c.Tied, Rows: tokens, Cols: c.Dim, Classes: c.Vocab, Params: s.norm, Stats: s.stats},
	}
	if c.PerLayer > 0 {
		m.Params = append(m.Params, []int{1, c.PerLayerVocab, c.Layers * c.PerLayer}, []int{1, c.Layers * c.PerLayer, c.Dim}, []int{c.PerLayer})
	}
	if c.LearnedPositions {
		m.Params = append(m.Params, []int{1, c.Context, c.Dim})
	}
	if !c.Tied {
		m.Head.Params = append(m.Head.Params, []int{c.Vocab, c.Dim})
	}
	m.Stored = c.StoredBits
	for _, r := range []Rope{c.Rope, c.LocalRope} {
		if r.Kind != "" {
			m.Tables += s.rows * int64(r.Dim)
			if r.QueryScale != 0 && s.rows > int64(r.OriginalPositions) { // queries have a table of their own
				if m.Tables += s.rows * int64(r.Dim); c.latent() { // a factor in its place
					m.Tables += s.rows * int64(2-r.Dim)
				}
			}
		}
	}
	if c.Sinks { // in float32, with their gradient
		m.Tables += 2 * int64(c.Heads)
	}
	if c.Experts.Corrected {
		for i := range c.Layers {
			if c.hasExperts(i) {
				m.Tables += int64(c.Experts.Count)
			}
		}
	}
	if c.Experts.RouterLoss != 0 {
		m.Tables += int64(c.Experts.Count) // sums of scores
	}
	m.Vectors = 2*int64(c.ones()) + int64(c.zeros())
	m.Tables += int64(c.zeros())
	kept := map[int]bool{}
	for i := c.Layers - c.SharedKV; i < c.Layers; i++ { // keys, values, and their gradients
		if of := c.keysOf(i); !kept[of] {
			kept[of], m.Beside = true, m.Beside+4*s.rows*int64(c.keys(of))
		}
	}
	var streams []plan.Layer
	if c.AltUp.Streams > 0 {
		if streams, err = c.planAltUp(tokens); err != nil {
			return plan.Model{}, err
		}
	}
	for i := range c.Layers {
		own := c.of(i)
		second := own.planMLP
		if c.hasExperts(i) {
			second = own.planExperts
			if c.Experts.Beside {
				second = own.planBeside
			}
		}
		if streams != nil {
			m.Layers = append(m.Layers, streams[i])
		} else if x := c.mixer(i); x != nil {
			first := x.plan(c, s)
			if c.Mamba.Beside {
				first = c.planHybrid(s, i)
			}
			m.Layers = append(m.Layers, first, second(own.sizes(tokens)))
		} else if first := own.planAttention(own.sizes(tokens), i); c.Parallel {
			m.Layers = append(m.Layers, c.planParallel(s, first))
		} else {
			m.Layers = append(m.Layers, first, second(own.sizes(tokens)))
		}
		if last := &m.Layers[len(m.Layers)-1]; c.PerLayer > 0 && streams == nil {
			c.planPerLayer(s, last)
		}
		if last := &m.Layers[len(m.Layers)-1]; c.LayerScalar {
			last.Params = append(last.Params[:len(last.Params):len(last.Params)], []int{1})
		}
		if first := &m.Layers[0]; i == 0 { // it holds the embedding, and its gradient
			first.Forward, first.Backward = first.Forward+s.dim, first.Backward+2*s.dim
			for j := range first.Adapters {
				a := &first.Adapters[j]
				a.Forward, a.Backward = a.Forward+s.dim, a.Backward+2*s.dim
			}
		}
	}
	for i := range m.Layers {
		m.Layers[i].Name = c.stageName(i)
	}
	if err := c.planFloats(m.Layers); err != nil {
		return plan.Model{}, err
	}
	if err := m.Validate(); err != nil {
		return plan.Model{}, err
	}
	return m, nil
}

// planFloats sets Floats of the layers.
func (c *Config) planFloats(layers []plan.Layer) error {
	if c.Stored == 0 || len(c.Floats) == 0 {
		return nil
	}
	left := map[string]bool{}
	for _, name := range c.Floats {
		left[name] = true
	}
	shapes := make([][][]int, len(layers)) // of the matrices in floats
	all := c.tensorsOf(c.layout())
	for i, t := range all.list {
		if left[t.Name] && c.isMatrix(t) {
			delete(left, t.Name)
			shapes[all.stages[i]] = append(shapes[all.stages[i]], t.Shape)
		}
	}
	for name := range left {
		return bad("Floats", "%.80q, want a matrix of the layers", name)
	}
	for i, list := range shapes {
		l := &layers[i]
		for at, shape := range l.Params {
			if j := slices.IndexFunc(list, func(s []int) bool { return slices.Equal(s, shape) }); j >= 0 {
				l.Floats, list = append(l.Floats, at), slices.Delete(list, j, j+1)
			}
		}
	}
	return nil
}

// sizes are the numbers of elements of a sequence: of activations of each width, and of the statistics of norms.
type sizes struct {
	rows, dim, q, kv, hidden int64
	qkv                      int64   // widest output of the products that make q, k and v
	stats                    int64   // statistics of the norm before a half
	left                     int64   // what the backward step holds beside the gradient of the output
	post, postStats          int64   // input and statistics of the norm after a half, 0 without one
	norm                     [][]int // shapes of the parameters of a norm
	bias                     int     // columns of the widest bias
}

func (c *Config) sizes(tokens int) sizes {
	n := int64(tokens)
	s := sizes{
		rows: n, dim: n * int64(c.Dim), q: n * int64(c.Heads*c.HeadDim), kv: n * int64(c.KVHeads*c.HeadDim), hidden: n * int64(c.Hidden),
		stats: n, norm: [][]int{{c.Dim}},
	}
	if c.biased() {
		s.bias = max(c.Dim, c.queryRows()+2*c.widestKeys(), c.Hidden, c.Experts.Hidden, c.Experts.Count)
		for x := range c.mixes {
			s.bias = max(s.bias, x.width(c))
		}
	}
	if s.qkv = max(n*int64(c.queryRows()), s.kv); c.packed() {
		s.qkv = s.q + 2*s.kv
	}
	if c.LayerNorm {
		if s.stats = 2 * n; !c.NoNormBias {
			s.norm = [][]int{{c.Dim}, {c.Dim}}
		}
	}
	if c.PostNorms {
		s.post, s.postStats = s.dim, n
	}
	s.left = s.post
	return s.scaled(c.ResidualScale)
}

// scaled returns the sizes of a half whose output has a factor.
func (s sizes) scaled(factor float64) sizes {
	if factor != 0 {
		s.left = s.dim
	}
	return s
}

// half returns the fields that the two stages of a layer have in common.
func (c *Config) half(s sizes) plan.Layer {
	l := plan.Layer{Params: s.norm, Output: s.dim, Stats: s.stats + s.postStats, Rows: int(s.rows), RMSNorm: c.Dim, Bias: s.bias}
	if c.LayerNorm {
		l.LayerNorm, l.RMSNorm = c.Dim, 0
	}
	switch {
	case c.names().attentionNorm == "": // the parameters are those of the norm after the half
		l.Stats = s.postStats
	case c.PostNorms:
		l.Params = append(l.Params[:1:1], s.norm...)
	}
	return l
}

// linearShapes appends the shapes of a matrix and its bias.
func linearShapes(shapes [][]int, out, in int, bias bool) [][]int {
	shapes = append(shapes[:len(shapes):len(shapes)], []int{out, in})
	if bias {
		shapes = append(shapes, []int{out})
	}
	return shapes
}

func (c *Config) planAttention(s sizes, layer int) plan.Layer {
	s = s.scaled(c.Factors.Attention)
	if c.latent() {
		return c.planLatent(s)
	}
	window, shared := c.Windows[layer], c.reads(layer)
	l := c.half(s)
	queries, keys := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	shares, made := 3, 2*s.kv // made by the products for keys and values
	switch {
	case c.packed():
		shares = 1
		l.Params = linearShapes(l.Params, queries+2*keys, c.Dim, c.QKVBias)
	case shared:
		shares, made = 1, 0
		l.Params = linearShapes(l.Params, queries, c.Dim, c.QKVBias)
	case c.Full.KeysAreValues:
		shares, made = 2, s.kv
		l.Params = linearShapes(l.Params, queries, c.Dim, c.QKVBias)
		l.Params = linearShapes(l.Params, keys, c.Dim, c.QKVBias)
	default:
		l.Params = linearShapes(l.Params, c.queryRows(), c.Dim, c.QKVBias)
		l.Params = linearShapes(l.Params, keys, c.Dim, c.QKVBias)
		l.Params = linearShapes(l.Params, keys, c.Dim, c.QKVBias)
	}
	l.Params = linearShapes(l.Params, c.Dim, queries, c.OutBias)
	normed, heads, held := int64(0), int64(0), 2*s.kv // statistics of the norms of heads; keys and values as attention takes them
	width, keyWidth := c.qkNorms()
	switch {
	case c.QKNorm && shared:
		l.Params = append(l.Params, []int{width})
		normed, l.HeadNorm, held = s.q, width, 0
		heads = s.rows * int64(c.Heads)
	case c.QKNorm && c.names().perHead:
		l.Params = append(l.Params, []int{1, c.Heads, c.HeadDim}, []int{1, c.KVHeads, c.HeadDim})
		normed, l.HeadScale = s.q+s.kv, width
		heads = 2 * s.rows * int64(c.Heads+c.KVHeads)
	case c.QKNorm:
		l.Params = append(l.Params, []int{width}, []int{keyWidth})
		if normed, l.HeadNorm = s.q+s.kv, width; c.names().wide {
			l.RMSNorm, l.HeadNorm = max(c.Dim, width), 0
		}
		heads = s.rows * int64(queries/width+keys/keyWidth)
	}
	if c.ValueNorm && !shared {
		normed, heads = normed+s.kv, heads+s.rows*int64(c.KVHeads)
	}
	if c.Sinks {
		l.Params = append(l.Params, []int{c.Heads})
	}
	freed, freedLater := int64(0), int64(0) // within the backward step
	if c.freesSaved() {
		freed, freedLater = s.dim, s.dim+2*s.q+made
	}
	before, within, after := s.left+s.q-freed, 2*s.q+2*s.kv+normed-freed, s.q+made+s.dim-freedLater // the step of attention itself
	l.Kept = 2*s.q + made + s.post
	l.Forward = max(s.q+made, 2*s.q+held-s.dim, s.q, s.dim, normed)
	gate := int64(0)
	if c.OutputGate { // q and the gate are copied apart, and their gradients side by side
		gate = s.q
		before += s.q
		l.Kept += s.q
		l.Forward = max(3*s.q+made+max(s.dim, s.q)-s.dim, s.q+s.dim, 2*s.q, normed)
	}
	l.Backward = max(before, within, after)
	if c.OutputGate {
		l.Backward = max(l.Backward, 3*s.q+made-freedLater)
	}
	if 2*within+4*heads > 2*max(before, after) && (!c.OutputGate || within == l.Backward) { // the backward steps of the norms hold most
		l.BackwardStats = heads
	}
	if c.names().interleaved { // q, k and v are copied apart, and their gradients side by side
		all := s.q + 2*s.kv
		l.Forward, l.Backward = max(l.Forward, 2*all-s.dim), max(l.Backward, 2*all-freedLater)
	}
	l.Adapters = []plan.Adapter{ // the adapters of q, k and v need their input while its gradient is made
		{In: s.dim, Out: s.qkv, Forward: max(s.q+made+2*gate, s.dim+gate), Backward: after + s.dim, Gradient: s.dim, Shares: shares},
		{In: s.q, Out: s.dim, Forward: s.q, Backward: before, Adds: s.left == 0},
	}
	l.MACs = (2*(s.q+s.kv) + gate) * int64(c.Dim)
	l.Attention = plan.Attention{Heads: c.Heads, Queries: int(s.rows), Keys: int(s.rows), Dim: c.HeadDim, Causal: true, Window: window, Sinks: c.Sinks, Tiled: true}
	return l
}

// planPerLayer adds what [layers.PerLayer] does behind the second half of a layer.
func (c *Config) planPerLayer(s sizes, l *plan.Layer) {
	n := s.rows * int64(c.PerLayer)
	l.Tiles = plan.Tiles{} // what it keeps is of all rows, so that tiles of the MLP are not counted on
	l.Params = append(l.Params[:len(l.Params):len(l.Params)], []int{c.PerLayer, c.Dim}, []int{c.Dim, c.PerLayer}, []int{c.Dim})
	l.Kept += 2*s.dim + 2*n // the input of the half and of the norm after it
	l.Stats += s.rows
	l.Forward = max(l.Forward, s.dim+n, 2*n)
	if within := s.dim + n; 2*within+4*s.rows > 2*l.Backward {
		l.Backward, l.BackwardStats = within, s.rows
	}
	l.Adapters = append(l.Adapters,
		plan.Adapter{In: s.dim, Out: n, Forward: s.dim + n, Backward: 2 * s.dim, Gradient: s.dim, Shares: 1},
		plan.Adapter{In: n, Out: s.dim, Forward: s.dim + n, Backward: s.dim + 2*n, Gradient: n})
	l.MACs += 3 * n * int64(c.Dim)
}

// planParallel describes a layer of one stage, from its attention.
func (c *Config) planParallel(s sizes, l plan.Layer) plan.Layer {
	second := c.planMLP(s)
	held := int64(0) // the rows that both halves read, besides those that each copies or normalizes
	norms := second.Params[:len(s.norm)]
	if c.OneNorm {
		held, norms = s.dim, nil
	} else {
		l.Stats += second.Stats
	}
	l.Params = slices.Concat(l.Params, norms, second.Params[len(s.norm):])
	l.Kept += second.Kept
	l.Forward = held + max(l.Forward, second.Tiles.Forward)
	l.Backward = held + s.dim + max(l.Backward, second.Backward)
	l.Adapters = slices.Concat(l.Adapters, second.Tiles.Adapters)
	for i := range l.Adapters {
		a := &l.Adapters[i]
		a.Forward, a.Backward = a.Forward+held, a.Backward+held+s.dim
	}
	l.GELU, l.MACs = second.GELU, l.MACs+second.MACs
	return l
}

func (c *Config) planMLP(s sizes) plan.Layer {
	s = s.scaled(c.Factors.MLP)
	l := c.half(s)
	in, joined := int64(1), int64(0) // joined is gate and up in one
	switch {
	case c.names().gateUp != "":
		in, joined = 2, 2*s.hidden
		l.Params = linearShapes(l.Params, 2*c.Hidden, c.Dim, c.MLPBias)
	case c.Gated:
		in = 2
		l.Params = linearShapes(l.Params, c.Hidden, c.Dim, c.MLPBias)
		l.Params = linearShapes(l.Params, c.Hidden, c.Dim, c.MLPBias)
	default:
		if c.MLPBias || c.UpBias { // an activation without a bias takes no workspace
			l.GELU = c.Hidden
		}
		l.Params = linearShapes(l.Params, c.Hidden, c.Dim, c.MLPBias || c.UpBias)
	}
	l.Params = linearShapes(l.Params, c.Dim, c.Hidden, c.MLPBias)
	l.Kept = in*s.hidden + s.post
	l.Forward = max(in*s.hidden, in*s.hidden+joined-s.dim, s.dim)
	l.Backward = max(s.hidden+s.left, s.dim+joined)
	l.Adapters = []plan.Adapter{
		{In: s.dim, Out: s.hidden, Forward: max(in*s.hidden, s.dim), Backward: 2 * s.dim, Gradient: s.dim, Shares: int(in)},
		{In: s.hidden, Out: s.dim, Forward: s.hidden, Backward: 2*s.hidden + s.left, Gradient: s.hidden, Adds: s.left == 0},
	}
	if joined > 0 {
		l.Adapters[0] = plan.Adapter{In: s.dim, Out: joined, Forward: max(joined, s.dim), Backward: 2*s.dim + joined, Gradient: s.dim, Shares: 1}
	}
	l.Tiles = plan.Tiles{Whole: layers.WholeRows, Forward: max(s.dim+in*s.hidden, in*s.hidden+joined), Adapters: slices.Clone(l.Adapters)}
	l.Tiles.Adapters[0].Forward = s.dim + in*s.hidden // a tile's output is there from the beginning
	l.MACs = (in + 1) * s.hidden * int64(c.Dim)
	return l
}
