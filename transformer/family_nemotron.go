package transformer

func init() {
	register(family{
		name: "nemotron", class: "Nemotron", names: llamaNames.with(func(n *names) { n.gate = "" }),
		gguf: ggufForm{arch: "nemotron", activation: ReLU2, outBias: true, mlpBias: true, square: true, ownHead: true, turned: true, keys: func(c *Config, m *ggufMetadata) {
			m.count("vocab_size", c.Vocab)
			m.number("attention.layer_norm_rms_epsilon", c.NormEps) // which the converter writes, too
			if c.Rope.Kind == RopeDefault {
				m.add("rope.scaling.type", "none")
			}
		}},
		std: defaults{vocab: 256000, dim: 6144, hidden: 24576, layers: 32, heads: 48, context: 4096, bos: 2, eos: 3, pad: -1, eps: 1e-5, norm: "norm_eps", deviation: 0.0134, turned: 0.5},
		layers: func(c *Config) {
			ropedLayers(c)
			c.NoRope, c.Rope.Interleaved = nil, false
			c.LayerNorm, c.NormPlusOne, c.Gated = true, true, false
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
