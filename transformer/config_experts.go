package transformer

import "slices"

// This file reads and writes the config.json of the families with experts.

// routerLoss is the default of router_aux_loss_coef in all families.
const routerLoss = 0.001

// readExperts reads what the families with experts share. In mixtral and gpt_oss, intermediate_size is the width of an
// expert.
func (c *Config) readExperts(f *fields) {
	e := f.std.experts
	f.alias("num_local_experts", "num_experts")
	e.Count = get(f, "num_local_experts", e.Count)
	e.Chosen = get(f, "num_experts_per_tok", e.Chosen)
	if c.Family != "qwen3_moe" {
		e.Hidden = c.Hidden
	}
	loss := get(f, "router_aux_loss_coef", routerLoss)
	if get(f, "output_router_logits", false) {
		e.RouterLoss = loss
	}
	if f.err == nil && e.Count < 1 {
		f.fail("num_local_experts", "%d, want 1 or more", e.Count)
	}
	c.Experts = e
}

// everyWindow gives all layers the same window; 0 is none.
func (c *Config) everyWindow(f *fields, window int) {
	if f.has("sliding_window") && window < 1 {
		f.fail("sliding_window", "%d, want 1 or more", window)
		return
	}
	for i := range c.Windows {
		c.Windows[i] = window
	}
}

func readMixtral(f *fields, c *Config) {
	c.readSizes(f, true)
	c.readGate(f, "hidden_act", "silu")
	c.readExperts(f)
	f.only("router_jitter_noise", "0", "0.0")
	c.everyWindow(f, optional(f, "sliding_window", 0))
	c.readRope(f)
}

func readQwen3MoE(f *fields, c *Config) {
	c.readSizes(f, false)
	c.readGate(f, "hidden_act", "silu")
	f.std.experts.Hidden = get(f, "moe_intermediate_size", f.std.experts.Hidden)
	if f.err == nil && f.std.experts.Hidden < 1 {
		f.fail("moe_intermediate_size", "%d, want 1 or more", f.std.experts.Hidden)
	}
	f.std.experts.Normalize = get(f, "norm_topk_prob", false)
	c.readExperts(f)
	c.readDense(f)
	bias := get(f, "attention_bias", false)
	c.QKVBias, c.OutBias = bias, bias
	c.QKNorm = true
	f.ignore("max_window_layers") // transformers gives all layers the window
	if get(f, "use_sliding_window", false) {
		c.everyWindow(f, optional(f, "sliding_window", 4096))
	} else {
		f.taken["sliding_window"] = true
	}
	c.readRope(f)
}

// readDense reads which layers have an MLP in place of experts.
func (c *Config) readDense(f *fields) {
	step := get(f, "decoder_sparse_step", 1)
	listed := optional[[]int](f, "mlp_only_layers", nil)
	if f.err == nil && step < 1 {
		f.fail("decoder_sparse_step", "%d, want 1 or more", step)
	}
	if f.err != nil {
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

func readGPTOSS(f *fields, c *Config) {
	c.readSizes(f, true)
	if f.has("experts_per_token") && bytesOf(f, "experts_per_token") == bytesOf(f, "num_experts_per_tok") {
		f.ignore("experts_per_token") // as OpenAI calls it
	}
	f.ignore("initial_context_length") // transformers reads original_max_position_embeddings
	f.std.experts.Limit = get(f, "swiglu_limit", f.std.experts.Limit)
	f.std.experts.Alpha = get(f, "swiglu_alpha", f.std.experts.Alpha)
	c.Gated, c.Activation = true, SiLU
	f.ignore("hidden_act") // its experts have an activation of their own
	c.readExperts(f)
	c.Sinks = true
	bias := get(f, "attention_bias", true)
	c.QKVBias, c.OutBias = bias, bias
	c.readWindows(f, optional(f, "sliding_window", 128), func(i int) bool { return i%2 == 0 })
	c.readYarn(f)
}

// readYarn reads the RoPE of gpt_oss. If the file has none, it is YaRN with a factor of 32 over 4096 tokens.
func (c *Config) readYarn(f *fields) {
	p := f.ropeObject("rope_parameters", "rope_scaling")
	c.Rope = c.ropeOf(f, p, "rope_theta", f.std.theta)
	if p == nil {
		c.Rope.Kind, c.Rope.Factor, c.Rope.OriginalPositions = RopeYarn, 32, get(f, "original_max_position_embeddings", 4096)
		c.Rope.BetaFast, c.Rope.BetaSlow, c.Rope.NoTruncate = 32, 1, true
	}
	f.only("partial_rotary_factor", "1", "1.0")
}

// expertMembers adds the JSON members that only families with experts have.
func (c *Config) expertMembers(m map[string]any) {
	e, count := c.Experts, "num_local_experts"
	if c.Family == "qwen3_moe" {
		count = "num_experts"
	}
	m[count], m["num_experts_per_tok"] = e.Count, e.Chosen
	m["output_router_logits"], m["router_aux_loss_coef"] = e.RouterLoss != 0, number(or(e.RouterLoss, routerLoss))
	switch c.Family {
	case "mixtral":
		m["router_jitter_noise"], m["sliding_window"] = number(0), orNull(c.Windows[0])
	case "qwen3_moe":
		m["moe_intermediate_size"], m["norm_topk_prob"], m["attention_bias"] = e.Hidden, e.Normalize, c.QKVBias
		m["use_sliding_window"], m["sliding_window"] = c.Windows[0] != 0, orNull(c.Windows[0])
		m["decoder_sparse_step"], m["mlp_only_layers"] = 1, denseLayers(e.Dense)
	case "gpt_oss":
		window, _ := c.window()
		m["attention_bias"], m["layer_types"], m["sliding_window"] = c.QKVBias, c.layerTypes(), or0(window, 128)
		m["swiglu_limit"], m["swiglu_alpha"] = number(e.Limit), number(e.Alpha)
	}
}

func denseLayers(dense []bool) []int {
	list := []int{}
	for i, d := range dense {
		if d {
			list = append(list, i)
		}
	}
	return list
}
