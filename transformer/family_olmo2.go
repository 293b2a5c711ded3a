package transformer

func init() {
	register(family{
		name: "olmo2", class: "Olmo2", names: olmoNames, layers: olmoLayers,
		gguf: ggufForm{arch: "olmo2", ownHead: true, square: true},
		std:  defaults{vocab: 50304, dim: 4096, hidden: 11008, layers: 32, heads: 32, context: 2048, bos: -1, eos: 50279, pad: 1, eps: 1e-5},
		fields: func(f *fields, c *Config) {
			c.olmo(f)
			c.rope(f)
		},
	})
}

// olmoNames are the names of OLMo 2 and 3: norms follow the halves, and none is before them.
var olmoNames = llamaNames.with(func(n *names) {
	n.attentionNorm, n.attentionPost, n.mlpNorm, n.mlpPost, n.wide = "", "post_attention_layernorm", "", "post_feedforward_layernorm", true
})

func olmoLayers(c *Config) {
	plainLayers(c)
	c.PostNorms, c.QKNorm = true, true
}

// olmo has the fields of OLMo 2 and 3 but windows and ropes.
func (c *Config) olmo(f *fields) {
	c.counts(f, &c.Heads)
	c.activation(f, "hidden_act", "silu")
	c.bias(f, false)
	c.QKNorm = true
}
