package transformer

func init() {
	registerWhole(whole{
		name: "qwen3_5_moe", class: "Qwen3_5Moe", texts: []string{"qwen3_5_moe_text"}, fields: qwen35Whole,
		layouts: []layout{{"model.language_model.", "lm_head.weight"}, {"model.language_model.", "lm_head.weight"}},
		images:  []string{"visual."},
	})
	register(family{
		name: "qwen3_5_moe_text", class: "Qwen3_5Moe",
		names: deltaExperts.with(func(n *names) { n.experts.joinable = rows }),
		std: defaults{vocab: 248320, dim: 2048, hidden: 512, layers: 40, heads: 16, kvHeads: 2, headDim: 256, context: 32768, bos: -1, eos: -1, pad: -1,
			turned: 0.25, sections: true, experts: Experts{Count: 256, Chosen: 8, Hidden: 512, Shared: 512, Normalize: true}},
		layers: func(c *Config) {
			deltaExpertLayers(c)
			c.Experts.Dense, c.Experts.Normalize, c.Hidden = nil, true, c.Experts.Hidden
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.deltaExperts(f)
			c.Experts.Normalize, c.Hidden = true, c.Experts.Hidden // no layer has an MLP in place of experts
			if f.out != nil {
				delete(f.out, "intermediate_size")
			}
			c.delta(f)
		},
	})
}
