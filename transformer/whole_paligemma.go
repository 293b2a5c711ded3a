package transformer

func init() {
	registerWhole(whole{
		name: "paligemma", class: "PaliGemma", texts: []string{"gemma", "gemma2"}, layouts: wholeLayouts, prefixes: true,
		fields: []string{"vision_config", "image_token_index", "image_token_id", "projection_dim", "hidden_size", "vocab_size", "_vocab_size", "ignore_index",
			"num_image_tokens", "initializer_range", "use_cache"},
		images: []string{"vision_tower.", "multi_modal_projector."},
	})
}
