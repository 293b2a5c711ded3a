package transformer

func init() {
	for _, w := range []whole{{name: "idefics3", class: "Idefics3"}, {name: "smolvlm", class: "SmolVLM"}} {
		w.texts, w.layouts = []string{"llama"}, []layout{{"model.text_model.", "lm_head.weight"}, {"model.text_model.", "lm_head.weight"}}
		w.fields = []string{"vision_config", "image_token_id", "scale_factor", "image_seq_len", "vocab_size", "initializer_range", "use_cache"}
		w.images = []string{"vision_model.", "connector."}
		registerWhole(w)
	}
}
