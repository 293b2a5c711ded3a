package transformer

func init() {
	registerWhole(whole{
		name: "qwen2_5_vl", class: "Qwen2_5_VL", texts: []string{"qwen2"}, text: "qwen2_5_vl_text", flat: true,
		std:     defaults{vocab: 152064, dim: 8192, hidden: 29568, layers: 80, heads: 64, kvHeads: 8, context: 32768, bos: 151643, eos: 151645, pad: -1, eps: 1e-5, theta: 1_000_000, sections: true},
		layouts: []layout{{"model.", "lm_head.weight"}, {"model.language_model.", "lm_head.weight"}},
		fields:  []string{"vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id"},
		images:  []string{"visual."}, projectors: []string{"visual."},
	})
}
