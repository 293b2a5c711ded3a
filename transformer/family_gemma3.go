package transformer

import "github.com/snug-ml/snug/internal/strictjson"

func init() {
	registerWhole(whole{
		name: "gemma3", class: "Gemma3", texts: []string{"gemma3_text"}, layouts: wholeLayouts, mlx: "language_model.",
		fields: []string{"vision_config", "mm_tokens_per_image", "boi_token_index", "eoi_token_index", "image_token_index",
			"boi_token_id", "eoi_token_id", "image_token_id", "initializer_range", "use_cache"},
		images: []string{"vision_tower.", "multi_modal_projector."},
	})
	register(family{
		name: "gemma3_text", class: "Gemma3", mlx: "model.", names: gemmaNames, layers: gemmaLayers,
		gguf: ggufForm{arch: "gemma3", activation: GELUTanh, scaledEmbedding: true, logitCap: true, period: 6, localRope: true, headWidth: gemmaWidth(62)},
		std:  defaults{vocab: 262208, dim: 2304, hidden: 9216, layers: 26, heads: 8, kvHeads: 4, headDim: 256, context: 131072, bos: 2, eos: 1, pad: 0, tied: true},
		fields: func(f *fields, c *Config) {
			window := c.gemma(f)
			c.QKNorm = true
			f.put("attn_logit_softcapping", nil)
			f.notRead("attn_logit_softcapping") // which its attention does not apply
			if c.Whole != "" {                  // the class of the whole model has no cap, the class of the text has one
				f.notRead("final_logit_softcapping")
			} else {
				c.cap(f, "final_logit_softcapping", &c.LogitCap, 0)
			}
			pattern := get(f, "sliding_window_pattern", 6)
			if pattern < 1 {
				f.fail("sliding_window_pattern", "%d, want 1 or more", pattern)
				return
			}
			f.ignore("_sliding_window_pattern") // which transformers writes, and does not read
			c.windowsByType(f, window, func(i int) bool { return (i+1)%pattern != 0 })
			c.ropes(f)
		},
	})
}

// ropes has the two ropes. rope_parameters has one for each type of layer; rope_scaling scales the rope of layers without
// a window. Only transformers 5 can read a scaled rope of layers with a window.
func (c *Config) ropes(f *fields) {
	if c.LocalRope.Kind == RopeDefault {
		c.writeRope(f)
		f.put("rope_local_base_freq", c.LocalRope.Theta)
	} else {
		local, full := ropeMembers(c.LocalRope), ropeMembers(c.Rope)
		local["rope_theta"], full["rope_theta"] = strictjson.Float(c.LocalRope.Theta), strictjson.Float(c.Rope.Theta)
		f.put("rope_parameters", map[string]any{"sliding_attention": local, "full_attention": full})
	}
	global, local := f.object("rope_scaling"), (*fields)(nil)
	if both := f.object("rope_parameters"); both != nil {
		if global != nil {
			f.fail("rope_scaling", "rope_parameters is there too: want one of them")
		}
		global, local = both.object("full_attention"), both.object("sliding_attention")
		for _, name := range []string{"rope_theta", "rope_type", "type", "factor"} { // of a rope, where there are two
			if both.has(name) {
				both.fail(name, "%.40s, want a rope for each of full_attention and sliding_attention", both.raw[name])
			}
		}
		if err := both.rest(); err != nil && f.err == nil {
			f.err = err
		}
	}
	c.Rope = c.ropeOf(f, global, "rope_theta", 1_000_000)
	c.LocalRope = c.ropeOf(f, local, "rope_local_base_freq", 10_000)
	if c.Rope.NoTruncate || c.LocalRope.NoTruncate {
		f.fail("truncate", "false, which transformers does not apply to one of two ropes: want true")
	}
}
