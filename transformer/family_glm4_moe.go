package transformer

func init() {
	register(family{
		name: "glm4_moe", class: "Glm4Moe",
		names: llamaNames.with(func(n *names) {
			n.further = true
			n.experts.shared, n.experts.correction = "mlp.shared_experts", "mlp.gate.e_score_correction_bias"
			n.experts.floatLogits = true
		}),
		std: defaults{vocab: 151552, dim: 4096, hidden: 10944, layers: 46, heads: 96, kvHeads: 8, context: 131072, bos: -1, eos: -1, pad: -1, eps: 1e-5, turned: 0.5,
			experts: Experts{Count: 128, Chosen: 8, Hidden: 1408}},
		layers: func(c *Config) {
			e := c.Experts
			ropedLayers(c)
			c.NoRope, c.Rope.Interleaved, c.OutBias, c.Experts = nil, false, false, e
		},
		fields: func(f *fields, c *Config) {
			if f.out == nil { // without a head_dim it is the whole part of the quotient, as of the class's own defaults
				f.std.headDim = get(f, "hidden_size", f.std.dim) / max(1, get(f, "num_attention_heads", f.std.heads))
			}
			c.counts(f, nil)
			c.activation(f, "hidden_act", "silu")
			field(f, "attention_bias", &c.QKVBias, false)
			field(f, "use_qk_norm", &c.QKNorm, false)
			c.sparse(f, Experts{Count: 128, Chosen: 8, Hidden: 1408, Shared: 1, Scale: 1}, 1)
			c.groups(f, 1, 1, 2)
			field(f, "norm_topk_prob", &c.Experts.Normalize, true)
			c.Experts.Sigmoid, c.Experts.Corrected = true, true
			c.further(f)
			c.rope(f)
		},
	})
}
