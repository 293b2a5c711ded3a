package transformer

func init() {
	register(family{
		name: "qwen3", class: "Qwen3", mlx: "model.", names: llamaNames, gguf: ggufForm{arch: "qwen3"},
		std: defaults{vocab: 151936, dim: 4096, hidden: 22016, layers: 32, heads: 32, kvHeads: 32, headDim: 128, context: 32768, bos: -1, eos: -1, pad: -1, sections: true},
		fields: func(f *fields, c *Config) {
			c.qwen(f)
			c.bias(f, false)
			c.QKNorm = true
		},
	})
}
