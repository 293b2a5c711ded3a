package transformer

func init() {
	register(family{
		name: "cohere2", class: "Cohere2", names: cohereNames,
		layers: func(c *Config) {
			cohereLayers(c)
			c.QKNorm, c.NoRope = false, c.withoutWindow()
		},
		gguf: ggufForm{arch: "cohere2", square: true, tiedHead: true, logitScale: true, period: 4, noRope: 4, keys: func(c *Config, m *ggufMetadata) {
			m.count("vocab_size", c.Vocab)
			m.count("rope.dimension_count", c.HeadDim)
			plainScaling(c, m)
		}},
		std: defaults{vocab: 256000, dim: 8192, hidden: 22528, layers: 40, heads: 64, context: 8192, bos: 5, eos: 255001, pad: 0, tied: true, eps: 1e-5,
			norm: "layer_norm_eps"},
		fields: func(f *fields, c *Config) {
			c.cohere(f)
			for name, value := range map[string]string{"rotary_pct": "1.0", "position_embedding_type": `"rope_gptj"`, "use_parallel_block": "true",
				"use_gated_activation": "true", "use_embedding_sharing": "true", "use_parallel_embedding": "true",
				"order_of_interleaved_layers": `"local_attn_first"`} {
				f.says(name, value)
			}
			f.ignore("layer_switch") // another name of the pattern
			f.ignore("_sliding_window_pattern")
			window, _ := c.window()
			period := optional(f, "sliding_window_pattern", 4)
			if f.out != nil && window == 0 {
				window = 4096 // without any transformers makes no model, whatever the layers are
			}
			nullable(f, "sliding_window", &window, 4096)
			if f.err == nil && f.out == nil && period < 1 {
				f.fail("sliding_window_pattern", "%d, want 1 or more", period)
				return
			}
			c.windowsByType(f, window, func(i int) bool { return (i+1)%period != 0 })
			c.rope(f)
		},
	})
}

// withoutWindow says for each layer whether it has no window, nil if all have one.
func (c *Config) withoutWindow() (list []bool) {
	for i, n := range c.Windows {
		if n == 0 && list == nil {
			list = make([]bool, len(c.Windows))
		}
		if list != nil {
			list[i] = n == 0
		}
	}
	return list
}
