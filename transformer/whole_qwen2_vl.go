package transformer

func init() {
	for _, w := range []whole{{name: "qwen2_vl", class: "Qwen2VL"}, {name: "qwen2_5_vl", class: "Qwen2_5_VL"}} {
		w.texts, w.text, w.flat = []string{"qwen2"}, w.name+"_text", true
		w.std = defaults{
			vocab: 152064, dim: 8192, hidden: 29568, layers: 80, heads: 64, kvHeads: 8, context: 32768, bos: 151643, eos: 151645, pad: -1, eps: 1e-5,
			theta: 1_000_000, sections: true,
		}
		w.layouts = []layout{{"model.", "lm_head.weight"}, {"model.language_model.", "lm_head.weight"}}
		w.fields = []string{"vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id", "vision_token_id"}
		w.images, w.projectors = []string{"visual."}, []string{"visual."}
		registerWhole(w)
	}
}
