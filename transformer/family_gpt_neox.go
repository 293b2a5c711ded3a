package transformer

import "regexp"

func init() {
	register(family{
		name: "gpt_neox", class: "GPTNeoX",
		names: names{
			layouts:   []layout{{"gpt_neox.", "embed_out.weight"}, {"gpt_neox.", "lm_head.weight"}, {"", "embed_out.weight"}},
			buffers:   regexp.MustCompile(`^layers\.[0-9]+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)$`),
			embedding: "embed_in", norm: "final_layer_norm", block: "layers",
			attentionNorm: "input_layernorm", qkv: "attention.query_key_value", out: "attention.dense",
			mlpNorm: "post_attention_layernorm", up: "mlp.dense_h_to_4h", down: "mlp.dense_4h_to_h",
			interleaved: true,
		},
		gguf: ggufForm{arch: "gptneox", oneRow: true, activation: GELU, exactGELU: true, outBias: true, mlpBias: true, square: true, ownHead: true, turned: true,
			parallel: func(r *ggufReader) bool {
				v, _ := r.file.Value(r.arch + ".use_parallel_residual")
				return v == true
			},
			keys: func(c *Config, m *ggufMetadata) { m.add("use_parallel_residual", c.Parallel) }},
		std: defaults{vocab: 50432, dim: 6144, hidden: 24576, layers: 44, heads: 64, context: 2048, bos: 0, eos: 2, pad: -1, eps: 1e-5, norm: "layer_norm_eps",
			turned: 0.25, base: "rotary_emb_base", share: "rotary_pct"},
		layers: func(c *Config) {
			parallel := c.Parallel
			ropedLayers(c)
			c.NoRope, c.Rope.Interleaved, c.Parallel = nil, false, parallel
			c.LayerNorm, c.Gated, c.MLPBias, c.KVHeads = true, false, true, c.Heads
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.square(f)
			c.activation(f, "hidden_act", "gelu")
			c.bias(f, true)
			field(f, "hidden_dropout", &c.ResidualDropout, 0)
			c.EmbeddingDropout = c.ResidualDropout
			field(f, "use_parallel_residual", &c.Parallel, true)
			c.rope(f)
		},
	})
}
