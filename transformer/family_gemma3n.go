package transformer

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
)

func init() {
	registerWhole(whole{
		name: "gemma3n", class: "Gemma3n", texts: []string{"gemma3n_text"},
		layouts: []layout{{"model.language_model.", "lm_head.weight"}, {"language_model.model.", "language_model.lm_head.weight"}},
		fields: []string{"vision_config", "audio_config", "audio_soft_tokens_per_image", "vision_soft_tokens_per_image", "boi_token_id", "eoi_token_id",
			"image_token_id", "boa_token_id", "eoa_token_id", "audio_token_id", "initializer_range", "use_cache"},
		images: []string{"vision_tower.", "embed_vision.", "audio_tower.", "embed_audio."},
	})
	register(family{
		name: "gemma3n_text", class: "Gemma3n",
		names: gemmaNames.with(func(n *names) {
			n.perLayer = perLayerNames{tokens: "embed_tokens_per_layer", projection: "per_layer_model_projection", norm: "per_layer_projection_norm",
				gate: "per_layer_input_gate", out: "per_layer_projection", post: "post_per_layer_input_norm"}
			n.altUp = altUpNames{first: "altup_projections.", last: "altup_unembed_projections.", norm: "altup.router_norm", router: "altup.modality_router",
				predict: "altup.prediction_coefs", correct: "altup.correction_coefs", scale: "altup.correct_output_scale",
				left: "laurel.linear_left", right: "laurel.linear_right", post: "laurel.post_laurel_norm"}
		}),
		std: defaults{vocab: 262400, dim: 2048, hidden: 16384, layers: 35, heads: 8, kvHeads: 2, headDim: 256, context: 32768, bos: 2, eos: 1, pad: 0, tied: true},
		layers: func(c *Config) {
			shared, elements, tokens, streams, sparsity := c.SharedKV, c.PerLayer, c.PerLayerVocab, c.AltUp, c.Sparsity
			plainLayers(c)
			c.PostNorms, c.ValueNorm = true, true
			c.SharedKV, c.PerLayer, c.PerLayerVocab, c.AltUp, c.Sparsity = shared, elements, tokens, streams, sparsity
		},
		fields: func(f *fields, c *Config) {
			one(f, "intermediate_size")
			c.counts(f, nil)
			c.activation(f, "hidden_activation", "gelu_pytorch_tanh")
			f.ignore("hidden_act")
			c.bias(f, false)
			c.QKNorm, c.ValueNorm, c.ScoreScale, c.EmbeddingScale = true, true, 1, math.Sqrt(float64(c.Dim))
			c.cap(f, "final_logit_softcapping", &c.LogitCap, 30)
			field(f, "hidden_size_per_layer_input", &c.PerLayer, 256)
			field(f, "vocab_size_per_layer_input", &c.PerLayerVocab, 262144)
			field(f, "num_kv_shared_layers", &c.SharedKV, 15)
			c.streams(f)
			window, _ := c.window()
			if window == 0 {
				window = 512
			}
			field(f, "sliding_window", &window, 512)
			c.windowsByType(f, window, func(i int) bool { return (i+1)%5 != 0 })
			c.ropes(f)
		},
	})
}

// streams has AltUp, and the Sparsity of the MLPs.
func (c *Config) streams(f *fields) {
	a := &c.AltUp
	field(f, "altup_num_inputs", &a.Streams, 4)
	field(f, "altup_active_idx", &a.Active, 0)
	field(f, "laurel_rank", &a.Rank, 64)
	f.put("altup_correct_scale", true)
	f.only("altup_correct_scale", "true")
	f.put("altup_coef_clip", 120.0)
	f.only("altup_coef_clip", "120.0", "120", "1.2e2") // of coefficients in training, which are below 10
	shares := c.Sparsity
	if shares == nil && f.out != nil {
		shares = make([]float64, c.Layers)
	}
	loose(f, "activation_sparsity_pattern", &shares, nil)
	if f.out != nil || f.err != nil {
		return
	}
	if shares == nil && c.Layers > 10 {
		shares = make([]float64, c.Layers)
		for i := range 10 {
			shares[i] = 0.95
		}
	}
	if !slices.ContainsFunc(shares, func(s float64) bool { return s != 0 }) {
		if shares != nil && len(shares) != c.Layers {
			f.fail("activation_sparsity_pattern", "%d layers, and num_hidden_layers is %d", len(shares), c.Layers)
		}
		shares = nil
	}
	c.Sparsity = shares
}

// one puts the number of a list of equal numbers in place of the list.
func one(f *fields, name string) {
	raw := bytes.TrimSpace(f.raw[name])
	if len(raw) == 0 || raw[0] != '[' {
		return
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil || len(list) == 0 {
		f.fail(name, "%.40s, want numbers", raw)
		return
	}
	for i, n := range list {
		if compact(n) != compact(list[0]) {
			f.fail(name, "%s in layer %d after %s, want the same width in all layers", n, i, list[0])
			return
		}
	}
	if layers := 0; json.Unmarshal(f.raw["num_hidden_layers"], &layers) == nil && layers != len(list) {
		f.fail(name, "%d layers, and num_hidden_layers is %d", len(list), layers)
	}
	f.raw[name] = list[0]
}
