package transformer

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug/internal/kerneltest"
)

// TestHarmlessFields reads files with fields and spellings that change nothing in transformers, in the forms that people's
// folders have. Each model is the one of the plain file.
func TestHarmlessFields(t *testing.T) {
	type fields = map[string]string
	for name, test := range map[string]struct {
		base   string
		fields fields
		unread []string
	}{
		"tokens and sizes of old tools": {"llama", fields{"unk_token_id": "0", "hidden_dropout": "0.0", "eos_token": `"</s>"`, "bos_token": `"<s>"`,
			"pad_token": `"[PAD]"`, "seq_length": "2048"}, []string{"bos_token", "eos_token", "pad_token", "seq_length"}},
		"dropouts that the class lacks":      {"llama", fields{"hidden_dropout": "0.1", "embd_pdrop": "0.1"}, []string{"embd_pdrop", "hidden_dropout"}},
		"a rope that was finetuned":          {"llama", fields{"rope_scaling": `{"type":"default","finetuned":true}`}, []string{"rope_scaling.finetuned"}},
		"a rope of another family":           {"llama", fields{"rope_scaling": `{"type":"default","mrope_section":[16,24,24]}`}, []string{"rope_scaling.mrope_section"}},
		"an empty rope":                      {"llama", fields{"rope_scaling": `{}`}, nil},
		"one rope in both spellings":         {"llama", fields{"rope_theta": "10000.0", "rope_scaling": `{"type":"default"}`, "rope_parameters": `{"rope_type":"default","rope_theta":10000.0}`}, nil},
		"names of other families":            {"llama", fields{"clip_qkv": "8.0", "embedding_multiplier": "12", "qkv_bias": "true", "logits_scaling": "8"}, []string{"clip_qkv", "embedding_multiplier", "logits_scaling", "qkv_bias"}},
		"what other families switch off":     {"llama", fields{"qkv_bias": "false", "clip_qkv": "null", "use_sliding_window": "false", "shared_expert_intermediate_size": "0", "moe_layers": "[]", "extra": "{}"}, nil},
		"a window that the class lacks":      {"llama", fields{"sliding_window": "4096"}, []string{"sliding_window"}},
		"an old name of the class":           {"llama", fields{"architectures": `["LLaMAForCausalLM"]`}, []string{"architectures"}},
		"another class of causal models":     {"llama", fields{"architectures": `["YiForCausalLM"]`}, []string{"architectures"}},
		"an architecture without a list":     {"llama", fields{"architectures": `"LlamaForCausalLM"`}, nil},
		"no architectures":                   {"llama", fields{"architectures": "null"}, nil},
		"the classes of transformers":        {"llama", fields{"auto_map": `{"AutoConfig":"configuration_llama.LlamaConfig","AutoModelForCausalLM":"org/name--modeling_llama.LlamaForCausalLM"}`}, []string{"auto_map"}},
		"a tokenizer of its own":             {"llama", fields{"auto_map": `{"AutoTokenizer":["tokenization_x.XTokenizer",null]}`}, []string{"auto_map"}},
		"an empty auto_map":                  {"llama", fields{"auto_map": `{}`}, nil},
		"a type that is null":                {"llama", fields{"dtype": "null", "torch_dtype": "null"}, nil},
		"a type that is none":                {"llama", fields{"torch_dtype": `"float8_e4m3fn"`}, []string{"torch_dtype"}},
		"a type that is a number":            {"llama", fields{"dtype": "16"}, []string{"dtype"}},
		"tokens by their texts":              {"llama", fields{"bos_token_id": `"<s>"`, "pad_token_id": `[0]`}, []string{"bos_token_id", "pad_token_id"}},
		"fields of transformers 4":           {"llama", fields{"is_encoder_decoder": "false", "tie_encoder_decoder": "false", "pruned_heads": "{}", "add_cross_attention": "false", "cross_attention_hidden_size": "null", "torchscript": "false"}, nil},
		"a mode that the class lacks":        {"llama", fields{"use_mrope": "true", "rope_interleaved": "true"}, []string{"rope_interleaved", "use_mrope"}},
		"wrongly typed bookkeeping":          {"llama", fields{"use_cache": `"yes"`, "transformers_version": "4", "pretraining_tp": `"1"`}, nil},
		"the original length of another one": {"llama", fields{"original_max_position_embeddings": "4096"}, []string{"original_max_position_embeddings"}},
		"fields of tools":                    {"llama", fields{"unsloth_version": `"2024.9"`, "_anything": `{"a":1}`, "mlx_lm": "3"}, []string{"_anything", "mlx_lm"}},
		"types of layers":                    {"mistral", fields{"layer_types": `["full_attention"]`, "attention_bias": "true", "mlp_bias": "true"}, []string{"attention_bias", "layer_types", "mlp_bias"}},
		"a bias that it has anyway":          {"qwen2", fields{"attention_bias": "true", "qkv_bias": "true"}, []string{"attention_bias", "qkv_bias"}},
		"norms that it has anyway":           {"qwen3_moe", fields{"qkv_bias": "false", "use_qk_norm": "true", "shared_expert_intermediate_size": "0", "max_window_layers": "48"}, nil},
		"norms that it has all the same":     {"qwen3_moe", fields{"use_qk_norm": "false"}, []string{"use_qk_norm"}},
		"shared experts that it lacks":       {"mixtral", fields{"shared_expert_intermediate_size": "7", "layer_types": `["full_attention"]`}, []string{"layer_types", "shared_expert_intermediate_size"}},
		"an activation that it does not ask": {"gpt_oss", fields{"hidden_act": `"gelu"`, "mlp_bias": "true"}, []string{"mlp_bias"}},
		"a pattern beside the layers":        {"gemma3_text", fields{"_sliding_window_pattern": "5", "attn_logit_softcapping": "50.0"}, []string{"attn_logit_softcapping"}},
		"a pattern of the other Gemma":       {"gemma2", fields{"sliding_window_pattern": "6", "hidden_act": `"gelu"`}, []string{"sliding_window_pattern"}},
		"a rope for GPT-2":                   {"gpt2", fields{"rope_theta": "10000", "partial_rotary_factor": "0.5"}, []string{"partial_rotary_factor", "rope_theta"}},
		"a whole model with images": {"gemma3", fields{"vision_config": `{"a":1}`, "new_field": "1",
			"text_config": `{"model_type":"gemma3_text","final_logit_softcapping":30,"x":1}`}, []string{"new_field", "text_config.final_logit_softcapping", "text_config.x"}},
		"a whole model with prefixes": {"paligemma", fields{"vision_config": `{"a":1}`, "projection_dim": "2048", "hidden_size": "2048", "image_token_index": "257152",
			"text_config": `{"model_type":"gemma","num_image_tokens":256,"use_bidirectional_attention":true}`}, []string{"text_config.num_image_tokens"}},
		"a whole model with tiles": {"smolvlm", fields{"architectures": `["SmolVLMForConditionalGeneration"]`, "vision_config": `{"a":1}`, "scale_factor": "4", "image_token_id": "49190", "text_config": `{"model_type":"llama",
			"architectures":["VLlama3ForCausalLM"],"qk_layer_norms":false,"use_resampler":false,"rope_interleaved":false,"pixel_shuffle_factor":4,"perceiver_config":{"x":1},"is_llama_config":true}`},
			[]string{"text_config.perceiver_config", "text_config.pixel_shuffle_factor"}},
	} {
		t.Run(name, func(t *testing.T) {
			base := `{"model_type":"` + test.base + `"}`
			want, err := parseConfig([]byte(base))
			require.NoError(t, err)
			c, err := parseConfig(change(t, base, test.fields))
			require.NoError(t, err)
			require.Equal(t, test.unread, c.Unread)
			require.Subset(t, c.Ignored, c.Unread)
			require.True(t, slices.IsSorted(c.Ignored))
			if test.fields["bos_token_id"] != "" {
				want.BOS, want.Pad = -1, -1
			}
			require.NoError(t, want.differs(*c))
		})
	}
	for text, want := range map[string]string{`"torch.bfloat16"`: "bf16", `"bfloat16"`: "bf16", `"half"`: "f16", `"torch.float32"`: "f32"} {
		t.Run(text, func(t *testing.T) {
			for _, field := range []string{"dtype", "torch_dtype"} {
				c, err := parseConfig([]byte(`{"model_type":"llama","` + field + `":` + text + `}`))
				require.NoError(t, err)
				require.Equal(t, want, c.DType.String())
			}
		})
	}
	c, err := parseConfig([]byte(`{"model_type":"llama","dtype":"float16","torch_dtype":"float32"}`))
	require.NoError(t, err)
	require.Equal(t, "f16", c.DType.String(), "transformers takes dtype")
	require.Equal(t, []string{"torch_dtype"}, c.Unread)
}

// TestFieldsThatTransformersReads compares with the folder fields, which testdata/fields.py found by running transformers: a
// field that changes a small model there is known or refused here, and a field that transformers does not read for a
// family is ignored, whatever its value.
func TestFieldsThatTransformersReads(t *testing.T) {
	type fields struct{ Reads, Changes []string }
	families := readGoldens[fields](t, "fields")
	require.Equal(t, familyNames(), slices.Sorted(maps.Keys(families)))
	var file struct{ Known []string }
	readGolden(t, "fields.json", &file)
	read := map[string]bool{} // by some family
	for _, f := range families {
		for _, field := range f.Reads {
			read[field] = true
		}
	}
	others := slices.DeleteFunc(file.Known, func(field string) bool { return read[field] })
	require.Greater(t, len(others), 2000)
	values := []string{`{"x":1}`, `"x"`, "7", "true"}
	for family, f := range families {
		require.NotEmpty(t, f.Changes)
		base := `{"model_type":"` + family + `"}`
		if own := map[string]string{"deepseek_v2": `"num_experts_per_tok":6`, "granitemoehybrid": `"num_local_experts":0`, "glm4_moe": `"head_dim":128`, "mistral4": `"n_routed_experts":64`, "gemma3n_text": `"vocab_size_per_layer_input":1000`}[family]; own != "" { // whose default is none, no model, or too large for an int of 32 bits
			base = `{"model_type":"` + family + `",` + own + `}`
		}
		plain, err := parseConfig([]byte(base))
		require.NoError(t, err, family)
		for _, field := range f.Changes {
			known := 0
			for _, value := range values {
				c, err := parseConfig(change(t, base, map[string]string{field: value}))
				if err != nil || !slices.Contains(c.Unread, field) && field != "model_type" {
					known++
				}
			}
			require.Positive(t, known, "%s: %s changes what transformers computes, and is passed over", family, field)
		}
		for i, field := range others {
			for j, value := range values {
				if !kerneltest.Taken(i+j, len(values)) {
					continue
				}
				c, err := parseConfig(change(t, base, map[string]string{field: value}))
				require.NoError(t, err, "%s: transformers does not read %s", family, field)
				require.Contains(t, c.Ignored, field)
				require.NoError(t, plain.differs(*c), field)
			}
		}
	}
}
