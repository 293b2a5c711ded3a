package transformer

func init() {
	register(family{
		name: "stablelm", class: "StableLm", names: llamaNames,
		gguf: ggufForm{arch: "stablelm", square: true, ownHead: true, turned: true, keys: func(c *Config, m *ggufMetadata) {
			m.add("use_parallel_residual", c.Parallel)
		}, parallelByNames: true, parallel: func(r *ggufReader) bool { return !r.has("blk.0.ffn_norm.weight") }},
		std: defaults{vocab: 50304, dim: 2560, hidden: 6912, layers: 32, heads: 32, kvHeads: 32, context: 4096, bos: 0, eos: 0, pad: -1, eps: 1e-5,
			norm: "layer_norm_eps", turned: 0.25},
		layers: func(c *Config) {
			parallel := c.Parallel
			ropedLayers(c)
			c.Parallel, c.OneNorm = parallel, parallel
			c.LayerNorm, c.NoRope, c.Rope.Interleaved = true, nil, false
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.square(f)
			c.activation(f, "hidden_act", "silu")
			field(f, "use_qkv_bias", &c.QKVBias, false)
			field(f, "hidden_dropout", &c.ResidualDropout, 0)
			f.only("qk_layernorm", "false")
			field(f, "use_parallel_residual", &c.Parallel, false)
			c.OneNorm = c.Parallel
			c.rope(f)
		},
	})
}
