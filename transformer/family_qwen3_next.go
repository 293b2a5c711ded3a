package transformer

func init() {
	register(family{
		name: "qwen3_next", class: "Qwen3Next",
		names: deltaExperts.with(func(n *names) {
			n.delta.qkv, n.delta.z, n.delta.b, n.delta.a = "linear_attn.in_proj_qkvz", "", "linear_attn.in_proj_ba", ""
		}),
		std: defaults{vocab: 151936, dim: 2048, hidden: 5632, layers: 48, heads: 16, kvHeads: 2, headDim: 256, context: 32768, bos: -1, eos: -1, pad: -1,
			turned: 0.25, experts: Experts{Count: 512, Chosen: 10, Hidden: 512, Shared: 512}},
		layers: deltaExpertLayers,
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.deltaExperts(f)
			field(f, "norm_topk_prob", &c.Experts.Normalize, true)
			c.dense(f)
			c.delta(f)
		},
	})
}

// deltaExperts are the names of Qwen3.5's models with experts beside one of all tokens.
var deltaExperts = qwen35Names.with(func(n *names) {
	n.experts.shared, n.experts.sharedGate = "mlp.shared_expert", "mlp.shared_expert_gate"
})

func deltaExpertLayers(c *Config) {
	e := c.Experts
	deltaLayers(c, ropedLayers)
	c.Experts = Experts{Count: e.Count, Chosen: e.Chosen, Hidden: e.Hidden, Dense: e.Dense, Normalize: e.Normalize, RouterLoss: e.RouterLoss, Shared: e.Shared, SharedGate: true}
}

// deltaExperts has the fields of the experts.
func (c *Config) deltaExperts(f *fields) {
	hidden, shared := c.Experts.Hidden, c.Experts.Shared
	field(f, "moe_intermediate_size", &hidden, f.std.experts.Hidden)
	field(f, "shared_expert_intermediate_size", &shared, f.std.experts.Shared)
	for _, n := range []struct {
		name  string
		value int
	}{{"moe_intermediate_size", hidden}, {"shared_expert_intermediate_size", shared}} {
		if f.err == nil && f.out == nil && n.value < 1 {
			f.fail(n.name, "%d, want 1 or more", n.value)
		}
	}
	c.experts(f, "num_experts", hidden)
	c.Experts.Shared, c.Experts.SharedGate = shared, true
}
