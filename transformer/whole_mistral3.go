package transformer

func init() {
	registerWhole(whole{
		name: "mistral3", class: "Mistral3", texts: []string{"mistral", "ministral3", "mistral4"}, layouts: wholeLayouts, strict: true,
		fields: []string{"vision_config", "image_token_index", "image_token_id", "projector_hidden_act", "multimodal_projector_bias", "vision_feature_layer",
			"spatial_merge_size", "initializer_range", "use_cache"},
		images: []string{"vision_tower.", "multi_modal_projector."},
	})
}
