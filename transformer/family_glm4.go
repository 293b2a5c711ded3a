package transformer

func init() {
	register(family{
		name: "glm4", class: "Glm4",
		names: llamaNames.with(func(n *names) {
			n.gate, n.up, n.gateUp = "", "", "mlp.gate_up_proj"
			n.attentionPost, n.mlpPost = "post_self_attn_layernorm", "post_mlp_layernorm"
		}),
		gguf: ggufForm{arch: "glm4", turned: true, noAdapters: "llama.cpp ends with an assertion at adapters of glm4's o_proj and down_proj"},
		std:  defaults{vocab: 151552, dim: 4096, hidden: 13696, layers: 40, heads: 32, kvHeads: 2, headDim: 128, context: 131072, bos: -1, eos: -1, pad: 151329, eps: 1.5625e-07, turned: 0.5},
		layers: func(c *Config) {
			ropedLayers(c)
			c.NoRope, c.PostNorms, c.Rope.Interleaved = nil, true, true
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.activation(f, "hidden_act", "silu")
			field(f, "attention_bias", &c.QKVBias, true)
			if f.out == nil && !f.has("eos_token_id") {
				c.EOS = []int{151329, 151336, 151338}
			}
			c.rope(f)
		},
	})
}
