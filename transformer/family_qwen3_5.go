package transformer

// qwen35Whole are the fields of a model for images and text, beside text_config and vision_config.
var qwen35Whole = []string{"vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"}

func init() {
	registerWhole(whole{
		name: "qwen3_5", class: "Qwen3_5", texts: []string{"qwen3_5_text"}, fields: qwen35Whole,
		layouts: []layout{{"model.language_model.", "lm_head.weight"}, {"model.language_model.", "lm_head.weight"}},
		images:  []string{"visual."},
	})
	register(family{
		name: "qwen3_5_text", class: "Qwen3_5", names: qwen35Names,
		std: defaults{vocab: 248320, dim: 4096, hidden: 12288, layers: 32, heads: 16, kvHeads: 4, headDim: 256, context: 32768, bos: -1, eos: -1, pad: -1,
			turned: 0.25, sections: true},
		layers: func(c *Config) { deltaLayers(c, ropedLayers) },
		fields: func(f *fields, c *Config) {
			c.counts(f, nil)
			c.delta(f)
		},
	})
}

var qwen35Names = llamaNames.with(func(n *names) {
	n.beside = "mtp."
	n.delta = deltaNames{qkv: "linear_attn.in_proj_qkv", z: "linear_attn.in_proj_z", b: "linear_attn.in_proj_b", a: "linear_attn.in_proj_a",
		conv: "linear_attn.conv1d", bias: "linear_attn.dt_bias", log: "linear_attn.A_log", norm: "linear_attn.norm", out: "linear_attn.out_proj"}
})

// deltaLayers is a function that sets what families have, for those with gated delta nets in most layers.
func deltaLayers(c *Config, others func(c *Config)) {
	mixers, delta, turned := c.Mixers, c.Delta, c.Rope.Dim
	others(c)
	c.Mixers, c.Delta, c.Rope.Dim = mixers, delta, turned
	c.NoRope, c.Rope.Interleaved, c.LocalRope = nil, false, Rope{}
	c.OutputGate, c.QKNorm, c.NormPlusOne, c.Activation = true, true, true, SiLU
}

// delta has the fields of such families, after the counts.
func (c *Config) delta(f *fields) {
	c.silu(f)
	c.QKNorm, c.NormPlusOne, c.OutputGate = true, true, true
	c.bias(f, false)
	for _, n := range []struct {
		name     string
		value    *int
		standard int
	}{
		{"linear_conv_kernel_dim", &c.Delta.Taps, 4}, {"linear_key_head_dim", &c.Delta.KeyDim, 128}, {"linear_value_head_dim", &c.Delta.Dim, 128},
		{"linear_num_key_heads", &c.Delta.KeyHeads, 16}, {"linear_num_value_heads", &c.Delta.Heads, 32},
	} {
		field(f, n.name, n.value, n.standard)
	}
	interval := get(f, "full_attention_interval", 4)
	if f.err == nil && interval < 1 {
		f.fail("full_attention_interval", "%d, want 1 or more", interval)
	}
	c.mixersByType(f, DeltaNet, "linear_attention", func(layer int) bool { return (layer+1)%max(1, interval) == 0 })
	c.rope(f)
	f.says("attn_output_gate", "true")
	for _, name := range []string{"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"} { // of further tokens, which are passed over
		f.ignore(name)
	}
}
