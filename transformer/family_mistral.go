package transformer

func init() {
	register(family{
		name: "mistral", class: "Mistral", mlx: "model.", names: llamaNames, gguf: llamaForm,
		std: defaults{vocab: 32000, dim: 4096, hidden: 14336, layers: 32, heads: 32, kvHeads: 8, context: 131072, bos: 1, eos: 2, pad: -1},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			c.everyWindow(f, 4096)
			c.rope(f)
		},
	})
}
