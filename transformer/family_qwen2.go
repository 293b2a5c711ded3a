package transformer

func init() {
	register(family{
		name: "qwen2", class: "Qwen2", mlx: "model.", names: llamaNames,
		gguf: ggufForm{arch: "qwen2", square: true, many: func(c *Config) bool { return c.Layers == 80 }},
		std:  defaults{vocab: 151936, dim: 4096, hidden: 22016, layers: 32, heads: 32, kvHeads: 32, context: 32768, bos: -1, eos: -1, pad: -1, sections: true},
		fields: func(f *fields, c *Config) {
			c.qwen(f)
			c.QKVBias = true
		},
	})
}

// qwen has what Qwen 2 and 3 share.
func (c *Config) qwen(f *fields) {
	c.counts(f, &c.Heads)
	c.activation(f, "hidden_act", "silu")
	window, first := c.window()
	slides := window != 0
	nullable(f, "sliding_window", &window, 4096)
	field(f, "max_window_layers", &first, 28)
	if field(f, "use_sliding_window", &slides, false); !slides {
		window = 0
	}
	c.windowsByType(f, window, func(i int) bool { return window != 0 && i >= first })
	c.rope(f)
}
