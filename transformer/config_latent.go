package transformer

import (
	"math"
	"slices"

	"github.com/snug-ml/snug/plan"
)

// Latent describes multi-head latent attention, see [layers.Latent]: keys and values of all heads are made of few numbers a row. HeadDim
// is KeyDim + RopeDim then, KVHeads is Heads, and a rope turns RopeDim elements. The zero Latent says that there is none.
type Latent struct {
	QueryRank int // numbers of a row that queries are made of; 0: they are made of the row itself
	Rank      int // numbers of a row that keys and values are made of
	KeyDim    int // elements of a head of q and k that do not turn
	RopeDim   int // elements that do; those of k are the same in all heads
	ValueDim  int // elements of a head of v
}

// checkLatent returns an error unless the fields of Latent fit the others.
func (c *Config) checkLatent() error {
	l := &c.Latent
	if n := c.names(); *l == (Latent{}) {
		return nil
	} else if n.latent.down == "" {
		return bad("Latent", "models of the family %q have none", c.Family)
	}
	for _, n := range []struct {
		name         string
		value, least int
	}{{"QueryRank", l.QueryRank, 0}, {"Rank", l.Rank, 1}, {"KeyDim", l.KeyDim, 1}, {"RopeDim", l.RopeDim, 2}, {"ValueDim", l.ValueDim, 1}} {
		if n.value < n.least || n.value > maxCount/max(1, c.Heads) {
			return bad("Latent."+n.name, "%d, want %d to %d", n.value, n.least, maxCount/max(1, c.Heads))
		}
	}
	switch window, _ := c.window(); {
	case c.HeadDim != l.KeyDim+l.RopeDim || c.KVHeads != c.Heads:
		return bad("Latent", "%d key heads of %d elements, want the %d heads, of %d+%d", c.KVHeads, c.HeadDim, c.Heads, l.KeyDim, l.RopeDim)
	case c.Rope.Dim != l.RopeDim || c.LocalRope.Kind != "" || c.NoRope != nil:
		return bad("Latent.RopeDim", "%d, and the rope turns %d: want as many, in all layers", l.RopeDim, c.Rope.Dim)
	case c.QKNorm || c.ValueNorm || c.Sinks || c.PackedQKV || c.ScoreCap != 0 || window != 0 || c.Full != FullAttention{}:
		return bad("Latent", "beside norms of heads, sinks, one matrix for q, k and v, a cap of scores, windows or layers of two kinds: want none of these")
	}
	return nil
}

// latent reports whether attention is a [Latent].
func (c *Config) latent() bool { return c.Latent.Rank > 0 }

// values returns the elements of a row of values of a layer.
func (c *Config) values(layer int) int {
	if c.latent() {
		return c.Heads * c.Latent.ValueDim
	}
	return c.keys(layer)
}

// attended returns the elements of a row of attention's output in a layer.
func (c *Config) attended(layer int) int {
	if c.latent() {
		return c.values(layer)
	}
	return c.Heads * c.of(layer).HeadDim
}

// latentNames are the names of the modules of a Latent, without the prefix of the layer.
type latentNames struct{ queryDown, queryNorm, queryUp, down, norm, up string }

// planLatent is planAttention for a Latent.
func (c *Config) planLatent(s sizes) plan.Layer {
	l, d := c.half(s), &c.Latent
	wide, q, pairs, values := d.Rank+d.RopeDim, c.Heads*c.HeadDim, c.Heads*(d.KeyDim+d.ValueDim), c.Heads*d.ValueDim
	first := q
	if d.QueryRank > 0 {
		first = d.QueryRank
	}
	l.Params = linearShapes(l.Params, first, c.Dim, c.QKVBias && d.QueryRank > 0)
	l.Params = linearShapes(l.Params, wide, c.Dim, c.QKVBias)
	l.Params = linearShapes(l.Params, pairs, d.Rank, false)
	l.Params = linearShapes(l.Params, c.Dim, values, c.OutBias)
	l.Params = append(l.Params, []int{d.Rank})
	if d.QueryRank > 0 {
		l.Params = append(linearShapes(l.Params, q, first, false), []int{first})
	}
	l.RMSNorm = max(c.Dim, d.Rank, d.QueryRank)
	of := func(width int) int64 { return s.rows * int64(width) }
	nF, nC, nQ, nP, nA, nR, nT, two := of(first), of(wide), of(q), of(pairs), of(values), of(d.Rank), of(d.RopeDim), int64(0)
	if d.QueryRank > 0 {
		two = nF
	}
	l.Kept = s.post + nA + two + nC + nQ + nP
	l.Forward = max(nF+nC, nC+2*nQ+nP+nA+nT-s.dim, nA, two+nC+nQ+nR+nP-s.dim, // without what is saved
		s.dim+nF+nC-(two+nC+nQ+nP), nR, nT+nQ) // beside it
	if two > 0 {
		l.Forward = max(l.Forward, 2*nF+nC+nQ-s.dim, nF-nP)
	}
	plain := max(s.post+nA, nA+3*nQ+nP, nQ+nT+nR+nC, nF+nC+s.dim)
	normed := nQ + nP + nT + 2*nR // with the statistics of a norm
	if two > 0 {
		normed = max(normed, nQ+nC+nF)
	}
	if l.Backward = max(plain, normed); normed >= plain {
		l.BackwardStats = s.rows
	}
	l.Adapters = []plan.Adapter{
		{In: s.dim, Out: max(nF, nC), Forward: max(nF+nC, s.dim+nF-two-nQ-nP), Backward: nF + nC + 2*s.dim, Gradient: s.dim, Shares: 2},
		{In: nR, Out: nP, Forward: max(two+nC+nQ+nR+nP-s.dim, nR), Backward: nQ + nP + nT + 3*nR, Gradient: nR},
		{In: nA, Out: s.dim, Forward: nA, Backward: s.post + nA, Adds: !c.PostNorms},
	}
	if two > 0 {
		l.Adapters = append(l.Adapters, plan.Adapter{In: nF, Out: nQ, Forward: max(2*nF+nC+nQ-s.dim, nF-nP), Backward: nQ + nC + 2*nF, Gradient: nF})
	}
	l.MACs = (nF+nC+nA)*int64(c.Dim) + two*int64(q) + nR*int64(pairs)
	l.Attention = plan.Attention{Heads: c.Heads, Queries: int(s.rows), Keys: int(s.rows), Dim: c.HeadDim, Causal: true, Tiled: true}
	return l
}

// latentLlama are the names of models whose attention is a Latent and whose other names are Llama's.
var latentLlama = llamaNames.with(func(n *names) {
	n.latent = latentNames{
		queryDown: "self_attn.q_a_proj", queryNorm: "self_attn.q_a_layernorm", queryUp: "self_attn.q_b_proj",
		down: "self_attn.kv_a_proj_with_mqa", norm: "self_attn.kv_a_layernorm", up: "self_attn.kv_b_proj",
	}
	n.experts.shared, n.experts.correction = "mlp.shared_experts", "mlp.gate.e_score_correction_bias"
	n.experts.floatLogits = true
})

// latentLayers sets what these models have.
func latentLayers(c *Config) {
	e, latent := c.Experts, c.Latent
	ropedLayers(c)
	c.NoRope, c.Latent, c.Experts = nil, latent, e
}

// countLatent has the counts of a model whose attention is a Latent, with the default sizes.
func (c *Config) countLatent(f *fields, std Latent) {
	l := &c.Latent
	field(f, "qk_nope_head_dim", &l.KeyDim, std.KeyDim)
	field(f, "qk_rope_head_dim", &l.RopeDim, std.RopeDim)
	field(f, "v_head_dim", &l.ValueDim, std.ValueDim)
	field(f, "kv_lora_rank", &l.Rank, std.Rank)
	nullable(f, "q_lora_rank", &l.QueryRank, std.QueryRank)
	f.ignore("head_dim") // which follows from them
	f.ignore("qk_head_dim")
	if f.raw != nil {
		delete(f.raw, "head_dim")
	}
	field(f, "attention_bias", &c.QKVBias, false)
	c.OutBias = c.QKVBias
	f.std.headDim = max(1, l.KeyDim+l.RopeDim)
	if c.counts(f, &c.Heads); f.out != nil {
		delete(f.out, "head_dim")
		return
	}
	if f.err == nil && c.KVHeads != c.Heads {
		f.fail("num_key_value_heads", "%d, want the %d of num_attention_heads", c.KVHeads, c.Heads)
	}
}

// latentRope has the rope of these models, and the factor of scores, which YaRN changes.
func (c *Config) latentRope(f *fields, interleaved bool) {
	head := c.HeadDim
	c.HeadDim = c.Latent.RopeDim
	c.rope(f)
	c.HeadDim = head
	c.Rope.Interleaved = interleaved
	if f.out != nil || f.err != nil {
		return
	}
	c.latentScale()
}

// latentScale sets the factor of scores from HeadDim and the rope.
func (c *Config) latentScale() {
	c.ScoreScale = 1 / math.Sqrt(float64(c.HeadDim))
	if m := c.Rope.MScaleAllDim; m != 0 {
		if c.Rope.Factor > 1 {
			m = 0.1*m*math.Log(c.Rope.Factor) + 1
		} else {
			m = 1
		}
		c.ScoreScale *= m * m
	}
}

// sparse has the experts of these models: a number of first layers without.
func (c *Config) sparse(f *fields, std Experts, firstDense int) {
	e := &c.Experts
	dense := 0
	for dense < len(e.Dense) && e.Dense[dense] {
		dense++
	}
	shared := 0
	if e.Hidden > 0 {
		shared = e.Shared / e.Hidden
	}
	scale := e.Scale
	f.alias("n_routed_experts", "num_local_experts")
	f.alias("n_routed_experts", "num_experts")
	field(f, "n_routed_experts", &e.Count, std.Count)
	field(f, "num_experts_per_tok", &e.Chosen, std.Chosen)
	field(f, "moe_intermediate_size", &e.Hidden, std.Hidden)
	field(f, "n_shared_experts", &shared, std.Shared)
	field(f, "routed_scaling_factor", &scale, std.Scale)
	field(f, "first_k_dense_replace", &dense, firstDense)
	if f.says("moe_layer_freq", "1"); f.out != nil || f.err != nil {
		return
	}
	if !(scale > 0) {
		f.fail("routed_scaling_factor", "%v, want a number above 0", scale)
	}
	if shared < 0 || shared > maxCount/max(1, e.Hidden) || e.Hidden < 1 {
		f.fail("n_shared_experts", "%d of %d, want 0 or more, of 1 or more elements", shared, e.Hidden)
		return
	}
	e.Shared, e.Scale, e.Dense = shared*e.Hidden, scale, nil
	if dense > 0 {
		e.Dense = make([]bool, c.Layers)
		for i := range min(dense, c.Layers) {
			e.Dense[i] = true
		}
	}
	if dense < 0 || e.Dense != nil && !slices.Contains(e.Dense, false) {
		f.fail("first_k_dense_replace", "%d, want 0 to %d", dense, c.Layers-1)
	}
}

// groups has the groups of experts.
func (c *Config) groups(f *fields, groups, chosen, top int) {
	e := &c.Experts
	nullable(f, "n_group", &e.Groups, groups)
	nullable(f, "topk_group", &e.ChosenGroups, chosen)
	if f.out == nil {
		if e.GroupTop = top; e.Groups == 0 {
			e.GroupTop = 0
		}
	}
}
