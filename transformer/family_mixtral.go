package transformer

func init() {
	register(family{
		name: "mixtral", class: "Mixtral", mlx: "model.", gguf: llamaForm.with(func(f *ggufForm) { f.mlpBias = false }),
		names: llamaNames.with(func(n *names) {
			n.experts = expertNames{router: "block_sparse_moe.gate", experts: "block_sparse_moe.experts.", gate: "w1", up: "w3", down: "w2", mlx: "block_sparse_moe.switch_mlp"}
		}),
		std: defaults{vocab: 32000, dim: 4096, hidden: 14336, layers: 32, heads: 32, kvHeads: 8, context: 131072, bos: 1, eos: 2, pad: -1,
			eps: 1e-5, theta: 1e6, experts: Experts{Count: 8, Chosen: 2}},
		layers: func(c *Config) {
			routedLayers(c)
			c.Experts.Hidden, c.Experts.Normalize = c.Hidden, true
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			c.experts(f, "num_local_experts", c.Hidden)
			f.put("router_jitter_noise", 0.0)
			f.only("router_jitter_noise", "0", "0.0")
			c.everyWindow(f, 0)
			c.rope(f)
		},
	})
}
