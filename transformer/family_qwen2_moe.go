package transformer

func init() {
	register(family{
		name: "qwen2_moe", class: "Qwen2Moe",
		names: llamaNames.with(func(n *names) { n.experts.shared, n.experts.sharedGate = "mlp.shared_expert", "mlp.shared_expert_gate" }),
		std: defaults{vocab: 151936, dim: 2048, hidden: 5632, layers: 24, heads: 16, kvHeads: 16, context: 32768, bos: -1, eos: -1, pad: -1,
			experts: Experts{Count: 60, Chosen: 4, Hidden: 1408, Shared: 5632, SharedGate: true}},
		layers: func(c *Config) {
			e := c.Experts
			routedLayers(c)
			c.Experts.Dense, c.Experts.Shared, c.Experts.SharedGate = e.Dense, e.Shared, true
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			hidden, shared := c.Experts.Hidden, c.Experts.Shared
			field(f, "moe_intermediate_size", &hidden, f.std.experts.Hidden)
			field(f, "shared_expert_intermediate_size", &shared, f.std.experts.Shared)
			if f.err == nil && min(hidden, shared) < 1 {
				f.fail("moe_intermediate_size", "%d, and of the shared expert %d, want 1 or more", hidden, shared)
			}
			c.experts(f, "num_experts", hidden)
			c.Experts.Shared = shared
			field(f, "norm_topk_prob", &c.Experts.Normalize, false)
			c.dense(f)
			field(f, "qkv_bias", &c.QKVBias, true)
			window, first := c.window()
			slides := window != 0
			nullable(f, "sliding_window", &window, 4096)
			if first = c.Layers; f.out == nil {
				first = get(f, "max_window_layers", 28)
			}
			if field(f, "use_sliding_window", &slides, false); !slides {
				window = 0
			}
			c.windowsByType(f, window, func(i int) bool { return window != 0 && i%2 == 0 && i < first })
			c.rope(f)
		},
	})
}
