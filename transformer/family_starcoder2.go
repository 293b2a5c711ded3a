package transformer

func init() {
	register(family{
		name: "starcoder2", class: "Starcoder2",
		names: llamaNames.with(func(n *names) { n.gate, n.up, n.down = "", "mlp.c_fc", "mlp.c_proj" }),
		gguf:  ggufForm{arch: "starcoder2", activation: GELUTanh, outBias: true, mlpBias: true, square: true},
		std: defaults{vocab: 49152, dim: 3072, hidden: 12288, layers: 30, heads: 24, kvHeads: 2, context: 4096, bos: 50256, eos: 50256, pad: -1, tied: true,
			eps: 1e-5, norm: "norm_epsilon", deviation: 0.018042},
		layers: func(c *Config) {
			plainLayers(c)
			c.LayerNorm, c.Gated = true, false
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.activation(f, "hidden_act", "gelu_pytorch_tanh")
			field(f, "use_bias", &c.QKVBias, true)
			c.OutBias, c.MLPBias = c.QKVBias, c.QKVBias
			field(f, "residual_dropout", &c.ResidualDropout, 0)
			field(f, "embedding_dropout", &c.EmbeddingDropout, 0)
			for _, name := range []string{"activation_function", "attention_softmax_in_fp32", "layer_norm_epsilon", "mlp_type", "norm_type",
				"scale_attention_softmax_in_fp32", "scale_attn_weights"} { // of published folders
				f.ignore(name)
			}
			c.everyWindow(f, 0)
			c.rope(f)
		},
	})
}
