package transformer

import "slices"

func init() {
	register(family{
		name: "smollm3", class: "SmolLM3", names: llamaNames,
		gguf: llamaForm.with(func(f *ggufForm) { f.arch, f.outBias, f.mlpBias, f.noRope, f.many = "smollm3", false, false, 4, nil }),
		std:  defaults{vocab: 128256, dim: 2048, hidden: 11008, layers: 36, heads: 16, kvHeads: 4, context: 32768, bos: 128000, eos: 128001, pad: 128004, tied: true, theta: 2e6},
		layers: func(c *Config) {
			ropedLayers(c)
			c.Rope.Dim, c.Rope.Interleaved = c.HeadDim, false
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, &c.Heads)
			c.activation(f, "hidden_act", "silu")
			c.bias(f, false)
			field(f, "mlp_bias", &c.MLPBias, false)
			c.noRope(f)
			f.ignore("max_window_layers") // of the first folders
			window, _ := c.window()
			slides := window != 0
			field(f, "use_sliding_window", &slides, false)
			nullable(f, "sliding_window", &window, 0)
			if slides {
				c.windowsByType(f, window, func(i int) bool { return window != 0 && c.NoRope != nil && c.NoRope[i] })
			} else { // whatever the types of the layers are
				f.put("layer_types", c.layerTypes())
				f.taken["layer_types"] = true
			}
			c.rope(f)
		},
	})
}

// noRope has the layers without a rope: a list with 1 for each layer that has one, or every so many layers one without.
func (c *Config) noRope(f *fields) {
	if f.err != nil {
		return
	}
	has := make([]int, c.Layers)
	for i := range has {
		if has[i] = 1; c.NoRope != nil && c.NoRope[i] {
			has[i] = 0
		}
	}
	loose(f, "no_rope_layers", &has, nil)
	every := get(f, "no_rope_layer_interval", 4)
	switch {
	case f.err != nil || f.out != nil:
		return
	case has == nil && every < 1:
		f.fail("no_rope_layer_interval", "%d, want 1 or more", every)
		return
	case has != nil && len(has) < c.Layers:
		f.fail("no_rope_layers", "%d layers, and num_hidden_layers is %d", len(has), c.Layers)
		return
	}
	without := make([]bool, c.Layers)
	for i := range without {
		if has == nil {
			without[i] = (i+1)%every == 0
		} else {
			without[i] = has[i] == 0
		}
	}
	if slices.Contains(without, true) {
		c.NoRope = without
	}
}
