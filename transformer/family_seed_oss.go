package transformer

func init() {
	register(family{
		name: "seed_oss", class: "SeedOss", mlx: "model.", names: llamaNames, gguf: ggufForm{arch: "seed_oss", mlpNorm: "post_attention_norm"},
		std: defaults{vocab: 155136, dim: 4096, hidden: 27648, layers: 64, heads: 80, kvHeads: 8, headDim: 128, context: 524288, bos: 0, eos: 2, pad: 1},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			field(f, "attention_bias", &c.QKVBias, true)
			field(f, "attention_out_bias", &c.OutBias, false)
			field(f, "mlp_bias", &c.MLPBias, false)
			field(f, "attention_dropout", &c.AttentionDropout, 0.1)
			field(f, "residual_dropout", &c.ResidualDropout, 0.1)
			c.rope(f)
		},
	})
}
