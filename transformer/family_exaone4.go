package transformer

func init() {
	register(family{
		name: "exaone4", class: "Exaone4",
		names: llamaNames.with(func(n *names) {
			n.attentionNorm, n.attentionPost, n.mlpNorm, n.mlpPost = "", "post_attention_layernorm", "", "post_feedforward_layernorm"
		}),
		std: defaults{vocab: 102400, dim: 4096, hidden: 16384, layers: 32, heads: 32, kvHeads: 32, context: 2048, bos: 0, eos: 2, pad: -1, eps: 1e-5},
		layers: func(c *Config) {
			hybrid := c.NoRope != nil
			plainLayers(c)
			if c.PostNorms = true; hybrid {
				c.NoRope = c.withoutWindow()
			}
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.activation(f, "hidden_act", "silu")
			c.QKNorm, c.PostNorms = true, true
			window, _ := c.window()
			if f.out != nil && window == 0 && c.NoRope != nil {
				window = 4096 // of no layer, but then none has a rope
			}
			nullable(f, "sliding_window", &window, 4096)
			period := 0
			if f.has("layer_types") {
				f.ignore("sliding_window_pattern")
			} else if f.out == nil {
				period = optional(f, "sliding_window_pattern", 4)
			}
			if f.err == nil && f.out == nil && !f.has("layer_types") && (period < 1 || window == 0) {
				f.fail("sliding_window_pattern", "%d, and the window is %d: want 1 or more of both, or layer_types", period, window)
				return
			}
			c.windowsByType(f, window, func(i int) bool { return (i+1)%period != 0 })
			if f.out == nil && f.err == nil && window != 0 { // full layers beside sliding ones have no rope
				c.NoRope = c.withoutWindow()
			}
			c.rope(f)
		},
	})
}
