package transformer

func init() {
	registerWhole(whole{
		name: "qwen3_vl", class: "Qwen3VL", texts: []string{"qwen3"}, text: "qwen3_vl_text",
		std: defaults{vocab: 151936, dim: 4096, hidden: 22016, layers: 32, heads: 32, kvHeads: 32, headDim: 128, context: 128000, bos: -1, eos: -1, pad: -1,
			theta: 500_000, sections: true, spread: true},
		layouts: []layout{{"model.language_model.", "lm_head.weight"}, {"model.language_model.", "lm_head.weight"}},
		fields:  []string{"vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"},
		images:  []string{"visual."}, projectors: []string{"visual.deepstack_merger_list.", "visual."},
	})
}
