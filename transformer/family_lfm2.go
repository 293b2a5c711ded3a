package transformer

import "slices"

func init() {
	register(family{
		name: "lfm2", class: "Lfm2",
		names: llamaNames.with(func(n *names) {
			n.norm, n.attentionNorm, n.mlpNorm = "embedding_norm", "operator_norm", "ffn_norm"
			n.qNorm, n.kNorm, n.out = "self_attn.q_layernorm", "self_attn.k_layernorm", "self_attn.out_proj"
			n.gate, n.up, n.down = "feed_forward.w1", "feed_forward.w3", "feed_forward.w2"
			n.convIn, n.convTaps, n.convOut = "conv.in_proj", "conv.conv", "conv.out_proj"
		}),
		std: defaults{vocab: 65536, dim: 2560, hidden: 12288, layers: 32, heads: 32, kvHeads: 8, context: 128_000, bos: 1, eos: 2, pad: 0, tied: true, norm: "norm_eps", eps: 1e-5, theta: 1e6},
		layers: func(c *Config) {
			mixers, taps, bias := c.Mixers, c.ConvTaps, c.ConvBias
			plainLayers(c)
			c.Mixers, c.ConvTaps, c.ConvBias = mixers, taps, bias
		},
		fields: func(f *fields, c *Config) {
			if raw, old := f.raw["block_ff_dim"]; old { // of the first folders, and so is tie_embedding; they come first in transformers
				f.raw["intermediate_size"], f.taken["block_ff_dim"] = raw, true
			}
			c.counts(f, nil)
			c.Tied = get(f, "tie_embedding", c.Tied)
			c.Activation, c.QKNorm = SiLU, true
			c.lfmHidden(f)
			field(f, "conv_bias", &c.ConvBias, false)
			if field(f, "conv_L_cache", &c.ConvTaps, 3); f.err == nil && c.ConvTaps < 1 {
				f.fail("conv_L_cache", "%d, want 1 or more", c.ConvTaps)
			}
			full := optional[[]int](f, "full_attn_idxs", nil)
			c.mixersByType(f, ShortConv, "conv", func(layer int) bool { return full == nil || slices.Contains(full, layer) })
			c.rope(f)
			for _, name := range []string{"block_dim", "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
				"block_use_xavier_init", "conv_dim", "conv_dim_out", "conv_use_xavier_init", "num_heads", "use_pos_enc"} { // of Liquid's own code
				f.ignore(name)
			}
		},
	})
}

// lfmHidden has the width of the MLP: two thirds of intermediate_size, times a factor, up to a multiple.
func (c *Config) lfmHidden(f *fields) {
	f.put("block_auto_adjust_ff_dim", false)
	adjust := get(f, "block_auto_adjust_ff_dim", true)
	factor, multiple := get(f, "block_ffn_dim_multiplier", 1.0), get(f, "block_multiple_of", 256)
	if f.err != nil || f.out != nil || !adjust {
		return
	}
	if !(factor > 0 && factor < 1<<20) || multiple < 1 || multiple > maxCount || c.Hidden > maxCount {
		f.fail("block_multiple_of", "%d, and block_ffn_dim_multiplier %v: want numbers above 0", multiple, factor)
		return
	}
	c.Hidden = int(factor * float64(2*c.Hidden/3))
	c.Hidden = (c.Hidden + multiple - 1) / multiple * multiple
}
