package transformer

import "slices"

func init() {
	register(family{
		name: "qwen3_moe", class: "Qwen3Moe", mlx: "model.", names: llamaNames,
		gguf: ggufForm{arch: "qwen3moe", normalizedExperts: true, keys: func(c *Config, m *ggufMetadata) {
			m.count("expert_feed_forward_length", c.Experts.Hidden)
		}},
		std: defaults{vocab: 151936, dim: 2048, hidden: 6144, layers: 24, heads: 32, kvHeads: 4, context: 32768, bos: -1, eos: -1, pad: -1,
			experts: Experts{Count: 128, Chosen: 8, Hidden: 768}, sections: true},
		layers: func(c *Config) {
			dense := c.Experts.Dense
			routedLayers(c)
			c.Experts.Dense = dense
		},
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.activation(f, "hidden_act", "silu")
			hidden := c.Experts.Hidden
			field(f, "moe_intermediate_size", &hidden, f.std.experts.Hidden)
			if f.err == nil && hidden < 1 {
				f.fail("moe_intermediate_size", "%d, want 1 or more", hidden)
			}
			c.experts(f, "num_experts", hidden)
			field(f, "norm_topk_prob", &c.Experts.Normalize, false)
			c.dense(f)
			c.bias(f, false)
			c.QKNorm = true
			f.ignore("max_window_layers") // transformers gives all layers the window
			slides := slices.ContainsFunc(c.Windows, func(n int) bool { return n != 0 })
			if field(f, "use_sliding_window", &slides, false); slides {
				c.everyWindow(f, 4096)
			} else {
				f.put("sliding_window", nil)
				f.taken["sliding_window"] = true
			}
			c.rope(f)
		},
	})
}

// dense has the layers with an MLP in place of experts.
func (c *Config) dense(f *fields) {
	step, listed := 1, []int{}
	for i, dense := range c.Experts.Dense {
		if dense {
			listed = append(listed, i)
		}
	}
	field(f, "decoder_sparse_step", &step, 1)
	loose(f, "mlp_only_layers", &listed, nil)
	if f.err == nil && step < 1 {
		f.fail("decoder_sparse_step", "%d, want 1 or more", step)
	}
	if f.err != nil || f.out != nil {
		return
	}
	dense, some := make([]bool, c.Layers), false
	for i := range dense {
		dense[i] = (i+1)%step != 0
		some = some || dense[i]
	}
	for _, i := range listed {
		if i < 0 || i >= c.Layers {
			f.fail("mlp_only_layers", "layer %d, want 0 to %d", i, c.Layers-1)
			return
		}
		dense[i], some = true, true
	}
	if !slices.Contains(dense, false) {
		f.fail("decoder_sparse_step", "with mlp_only_layers it leaves no layer with experts")
		return
	}
	if some {
		c.Experts.Dense = dense
	}
}
