package transformer

import (
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/meter"
	"github.com/stretchr/testify/require"
)

// TestGemma4Published reads the config.json of published models.
//
//check:not bits32
func TestGemma4Published(t *testing.T) {
	for _, k := range []struct {
		name, text string
		parameters int64 // of the text
		layers     []int // with a window, and without one: their keys and elements of a head
	}{
		{"31B", gemma4Text(`"vocab_size": 262144, "hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32,
			"num_key_value_heads": 16, "num_global_key_value_heads": 4, "attention_k_eq_v": true, "sliding_window": 1024, "hidden_size_per_layer_input": 0`),
			30_697_345_340, []int{16, 256, 4, 512}},
		{"26B-A4B", gemma4Text(`"vocab_size": 262144, "hidden_size": 2816, "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
			"num_key_value_heads": 8, "num_global_key_value_heads": 2, "attention_k_eq_v": true, "sliding_window": 1024, "hidden_size_per_layer_input": 0,
			"enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704`), 25_233_141_790, []int{8, 256, 2, 512}},
		{"E2B", gemma4Text(`"vocab_size": 262144, "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,
			"num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": true, "attention_k_eq_v": false, "sliding_window": 512,
			"hidden_size_per_layer_input": 256, "num_global_key_value_heads": null, "layer_types": [` + strings.Repeat(`"sliding_attention", "sliding_attention",
			"sliding_attention", "sliding_attention", "full_attention", `, 7) + `""]`), 4_628_569_379, []int{1, 256, 1, 512}},
		{"E4B", gemma4Text(`"vocab_size": 262144, "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 42, "num_attention_heads": 8,
			"num_key_value_heads": 2, "num_kv_shared_layers": 18, "attention_k_eq_v": false, "sliding_window": 512, "hidden_size_per_layer_input": 256`),
			7_463_013_418, []int{2, 256, 2, 512}},
	} {
		t.Run(k.name, func(t *testing.T) {
			c, err := parseConfig([]byte(strings.Replace(k.text, `, ""]`, `]`, 1)))
			require.NoError(t, err)
			require.Empty(t, c.Unread)
			require.NoError(t, c.supported())
			list, err := c.Tensors()
			require.NoError(t, err)
			sum := int64(0)
			for _, w := range list {
				n := int64(1)
				for _, d := range w.Shape {
					n *= int64(d)
				}
				sum += n
			}
			require.Equal(t, k.parameters, sum)
			require.Equal(t, k.layers, []int{c.KVHeads, c.HeadDim, c.Full.KVHeads, c.Full.HeadDim})
			require.Equal(t, "gemma4", c.Whole)
			require.Equal(t, Rope{Kind: RopeProportional, Theta: 1e6, Factor: 1, Dim: 512, Turned: 64}, c.Rope)
			own := c.layout().body + c.block(c.Layers-1) + "self_attn.k_norm.weight" // which published folders have, and nobody reads
			require.Equal(t, c.SharedKV > 0, c.passedOver(own, c.layout()))
			require.False(t, c.passedOver(c.layout().body+"layers.3.self_attn.k_norm.weight", c.layout()))
			_, err = c.Plan(4096)
			require.NoError(t, err)
		})
	}
}

// gemma4Text is a config.json of a whole model, with these fields of its text.
func gemma4Text(fields string) string {
	return `{"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "tie_word_embeddings": true, "dtype": "bfloat16",
		"audio_config": null, "vision_config": {"model_type": "gemma4_vision"}, "image_token_id": 258880, "audio_token_id": 258881, "boi_token_id": 255999,
		"text_config": {"model_type": "gemma4_text", "head_dim": 256, "global_head_dim": 512, "final_logit_softcapping": 30.0,
		"max_position_embeddings": 262144, "use_bidirectional_attention": "vision", "vocab_size_per_layer_input": 262144,
		"hidden_activation": "gelu_pytorch_tanh", "rope_parameters": {"full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
		"rope_type": "proportional"}, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}, ` + fields + `}}`
}

// TestGemma4Refuses: what no layer computes is an error that names the field.
func TestGemma4Refuses(t *testing.T) {
	const small = `{"model_type": "gemma4_text", "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]`
	for _, k := range []struct{ name, fields string }{
		{"num_experts", `"enable_moe_block": true`},
		{"SharedKV", `"num_kv_shared_layers": 1`},
		{"SharedKV", `"num_kv_shared_layers": 2`},
		{"PerLayer", `"hidden_size_per_layer_input": -1`},
		{"use_bidirectional_attention", `"use_bidirectional_attention": "all"`},
		{"per_layer_config.0", `"per_layer_config": {"0": {"head_dim": 64}}`},
		{"per_layer_config.1.hidden_size", `"per_layer_config": {"1": {"hidden_size": 64}}`},
		{"per_layer_config.2", `"per_layer_config": {"2": {"head_dim": 64}}`},
		{"rope_parameters.full_attention", `"rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}`},
		{"rope_parameters.full_attention.rope_type", `"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}`},
		{"Full.KVHeads", `"attention_k_eq_v": true, "num_global_key_value_heads": 3`},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, err := parseConfig([]byte(small + ", " + k.fields + "}"))
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, k.name)
		})
	}
	c, err := parseConfig([]byte(small + `, "per_layer_config": {"1": {"head_dim": 64, "num_key_value_heads": 2}}, "attention_k_eq_v": true, "global_head_dim": 9}`))
	require.NoError(t, err)
	require.Equal(t, FullAttention{KVHeads: 2, HeadDim: 64, KeysAreValues: true}, c.Full)
}

// TestSharedKeysAreCounted: a Monitor counts the keys and values that later layers read before the first pass takes them.
func TestSharedKeysAreCounted(t *testing.T) {
	count := func(rows int) int64 {
		mon, err := meter.New(meter.Options{})
		require.NoError(t, err)
		m := newTiny(t, tinyShared(), Options{Monitor: mon})
		require.NoError(t, m.Reserve(1, rows))
		now, _ := mon.Held()
		require.Equal(t, m.Memory().Workspace, now[meter.OnDevice][meter.Workspace])
		before := m.Memory().Workspace
		gradients(t, m, someBatch(7, 11, 1, rows))
		require.Equal(t, before, m.Memory().Workspace)
		return before
	}
	c := tinyShared()
	require.GreaterOrEqual(t, count(16)-count(8), int64(4*4*8*c.keys(c.keysOf(4))), "keys, values and their gradients of float32")
}
