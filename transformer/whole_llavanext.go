package transformer

func init() {
	registerWhole(whole{
		name: "llava_next", class: "LlavaNext", texts: []string{"llama", "mistral", "qwen2"}, layouts: wholeLayouts,
		fields: []string{"vision_config", "image_token_index", "image_token_id", "image_seq_length", "ignore_index", "projector_hidden_act", "multimodal_projector_bias",
			"vision_feature_layer", "vision_feature_select_strategy", "image_grid_pinpoints", "use_image_newline_parameter", "vocab_size", "initializer_range", "use_cache"},
		images: []string{"vision_tower.", "multi_modal_projector.", "image_newline"},
	})
}
