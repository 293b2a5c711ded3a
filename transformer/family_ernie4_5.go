package transformer

func init() {
	register(family{
		name: "ernie4_5", class: "Ernie4_5", names: llamaNames, gguf: ggufForm{arch: "ernie4_5", outBias: true},
		std: defaults{vocab: 103424, dim: 1024, hidden: 3072, layers: 18, heads: 16, kvHeads: 2, headDim: 128, context: 131072, bos: 1, eos: 2, pad: 0, tied: true, eps: 1e-5, theta: 500_000},
		layers: func(c *Config) {
			plainLayers(c)
			c.Rope.Interleaved = true
		},
		fields: func(f *fields, c *Config) {
			if !f.has("head_dim") && f.raw["head_dim"] != nil { // null is a share of the width
				f.std.headDim = 0
			}
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			loose(f, "use_bias", &c.QKVBias, false)
			c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
			c.rope(f)
		},
	})
}
