package transformer

import "fmt"

// supported returns an error unless the stages can compute what c describes.
func (c *Config) supported() error {
	gpt2, custom := c.Family == "gpt2", c.Family == Custom
	mixtral, gptOSS, e := c.Family == "mixtral", c.Family == "gpt_oss", &c.Experts
	for _, f := range []struct {
		name string
		bad  bool
		why  string
	}{
		{"Activation", c.Gated && c.Activation == GELU, fmt.Sprintf("a gate by %q is not supported: want %q or %q", c.Activation, SiLU, GELUTanh)},
		{"Activation", !c.Gated && c.Activation == SiLU, fmt.Sprintf("%q without a gate is not supported", c.Activation)},
		{"LogitCap", c.LogitCap != 0 && (c.LogitCap < 0x1p-100 || c.LogitCap > 0x1p100), "a cap of logits is 0 or 2^-100 to 2^100"},
		{"Multimodal", c.Multimodal && c.Family != "gemma3_text", "only gemma3_text is the text of a model for images"},
		{"PostNorms", c.PostNorms != (c.Family == "gemma2" || c.Family == "gemma3_text"), "only gemma2 and gemma3_text have norms after the halves, and both do"},
		{"NormPlusOne", gpt2 && c.NormPlusOne, "gpt2 has norms that multiply by w"},
		{"LayerNorm", !custom && c.LayerNorm != gpt2, "only gpt2 has LayerNorm, and all others have RMSNorm"},
		{"LearnedPositions", !custom && c.LearnedPositions != gpt2, "only gpt2 has learned positions, and all others have a rope"},
		{"Gated", !custom && c.Gated == gpt2, "only gpt2 has no gate"},
		{"QKNorm", gpt2 && c.QKNorm, "gpt2 has no norms of q and k"},
		{"QKVBias", gpt2 && !(c.QKVBias && c.OutBias && c.MLPBias), "all projections of gpt2 have biases"},
		{"Heads", gpt2 && (c.KVHeads != c.Heads || c.Heads*c.HeadDim != c.Dim), "the heads of gpt2 have keys of their own and divide Dim"},
		{"PackedQKV", c.PackedQKV && !custom, "only custom models choose to pack q, k and v"},
		{"PackedQKV", c.PackedQKV && (c.QKNorm || !c.LearnedPositions), "q, k and v in one matrix have neither norms nor a rope"},
		{"UpBias", c.UpBias && (!custom || c.Gated), "only custom models without a gate have a bias there alone"},
		{"UpBias", custom && !c.Gated && !c.UpBias && !c.MLPBias, "an activation without a gate takes a bias"},
		{"NormPlusOne", c.NormPlusOne && c.LayerNorm, "a LayerNorm multiplies by w"},
		{"Sinks", !custom && c.Sinks != gptOSS, "only gpt_oss has sinks, and all its layers do"},
		{"Experts", !custom && (e.Count > 0) != (mixtral || gptOSS || c.Family == "qwen3_moe"), "only mixtral, qwen3_moe and gpt_oss have experts"},
		{"Gated", e.Count > 0 && (!c.Gated || c.LearnedPositions), "experts have a gate, and their models have a rope"},
		{"Experts.Clamped", !custom && e.Clamped != gptOSS, "only experts of gpt_oss have clamped activations"},
		{"Experts.Clamped", e.Clamped && c.Activation != SiLU, fmt.Sprintf("the clamped activation is of %q", SiLU)},
		{"Experts.Bias", !custom && e.Bias != gptOSS, "only experts of gpt_oss have biases"},
		{"Experts.Normalize", (mixtral || gptOSS) && !e.Normalize, "the weights of experts of mixtral and gpt_oss are normalized"},
		{"Experts.Sigmoid", !custom && e.Sigmoid, "only custom models weigh experts by a sigmoid"},
		{"Experts.Dense", (mixtral || gptOSS) && e.Dense != nil, "all layers of mixtral and gpt_oss have experts"},
		{"Experts.Hidden", (mixtral || gptOSS) && e.Hidden != c.Hidden, "experts of mixtral and gpt_oss are as wide as Hidden"},
	} {
		if f.bad {
			return bad(f.name, "%s", f.why)
		}
	}
	return nil
}
