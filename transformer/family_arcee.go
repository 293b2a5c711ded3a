package transformer

func init() {
	register(family{
		name: "arcee", class: "Arcee", names: llamaNames.with(func(n *names) { n.gate = "" }),
		gguf: llamaForm.with(func(f *ggufForm) {
			f.arch, f.activation, f.outBias, f.mlpBias, f.many = "arcee", ReLU2, false, false, nil
		}),
		std: defaults{vocab: 32000, dim: 2560, hidden: 18432, layers: 32, heads: 32, context: 4096, bos: 128000, eos: 128001, pad: -1, eps: 1e-5},
		layers: func(c *Config) {
			plainLayers(c)
			c.Gated = false
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "relu2")
			c.bias(f, false)
			field(f, "mlp_bias", &c.MLPBias, false)
			c.rope(f)
		},
	})
}
