package transformer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/stretchr/testify/require"
)

// TestGemma3nPublished reads the config.json of published models.
//
//check:not bits32
func TestGemma3nPublished(t *testing.T) {
	for _, k := range []struct {
		name                   string
		layers, hidden, shared int
		parameters             int64 // of the text
	}{{"E2B", 30, 8192, 10, 4_435_182_688}, {"E4B", 35, 16384, 15, 6_835_235_568}} {
		t.Run(k.name, func(t *testing.T) {
			list := func(n int, each string) string {
				return "[" + strings.TrimSuffix(strings.Repeat(each+",", n), ",") + "]"
			}
			types := list(k.layers/5, `"sliding_attention","sliding_attention","sliding_attention","sliding_attention","full_attention"`)
			shares := strings.TrimSuffix(list(10, "0.95"), "]") + "," + strings.TrimPrefix(list(k.layers-10, "0.0"), "[")
			c, err := parseConfig(fmt.Appendf(nil, `{"model_type": "gemma3n", "architectures": ["Gemma3nForConditionalGeneration"], "audio_config": {"model_type": "gemma3n_audio"},
				"vision_config": {"model_type": "gemma3n_vision"}, "image_token_id": 262145, "audio_token_id": 262273, "torch_dtype": "bfloat16",
				"text_config": {"model_type": "gemma3n_text", "activation_sparsity_pattern": %s, "altup_active_idx": 0, "altup_coef_clip": 120.0, "altup_correct_scale": true,
				"altup_num_inputs": 4, "attention_bias": false, "attention_dropout": 0.0, "final_logit_softcapping": 30.0, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
				"hidden_size": 2048, "hidden_size_per_layer_input": 256, "initializer_range": 0.02, "intermediate_size": %s, "laurel_rank": 64, "layer_types": %s,
				"max_position_embeddings": 32768, "num_attention_heads": 8, "num_hidden_layers": %d, "num_key_value_heads": 2, "num_kv_shared_layers": %d, "rms_norm_eps": 1e-06,
				"rope_local_base_freq": 10000.0, "rope_scaling": null, "rope_theta": 1000000.0, "sliding_window": 512, "use_cache": true, "vocab_size": 262400,
				"vocab_size_per_layer_input": 262144}}`, shares, list(k.layers, fmt.Sprint(k.hidden)), types, k.layers, k.shared))
			require.NoError(t, err)
			require.Empty(t, c.Unread)
			require.NoError(t, c.supported())
			tensors, err := c.Tensors()
			require.NoError(t, err)
			sum := int64(0)
			for _, w := range tensors {
				n := int64(1) // more than an int of 32 bits has
				for _, d := range w.Shape {
					n *= int64(d)
				}
				sum += n
			}
			require.Equal(t, k.parameters, sum)
			require.Equal(t, AltUp{Streams: 4, Rank: 64}, c.AltUp)
			require.Equal(t, []float64{0.95, 0}, c.Sparsity[9:11])
			_, err = c.Plan(4096)
			require.NoError(t, err)
		})
	}
}

// TestGemma3nRefuses: what no layer computes is an error that names the field.
//
//check:not bits32
func TestGemma3nRefuses(t *testing.T) {
	const small = `{"model_type": "gemma3n_text", "num_hidden_layers": 2, "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"]`
	for _, k := range []struct{ name, fields string }{
		{"intermediate_size", `"intermediate_size": [8, 16]`},
		{"intermediate_size", `"intermediate_size": [8, 8, 8]`},
		{"altup_coef_clip", `"altup_coef_clip": 1.0`},
		{"altup_correct_scale", `"altup_correct_scale": false`},
		{"AltUp.Streams", `"altup_num_inputs": 1`},
		{"AltUp.Streams", `"altup_active_idx": 4`},
		{"AltUp.Streams", `"laurel_rank": 0`},
		{"Sparsity", `"activation_sparsity_pattern": [0.5]`},
		{"Sparsity", `"activation_sparsity_pattern": [0.5, 1.0]`},
		{"activation_sparsity_pattern", `"activation_sparsity_pattern": [0.0]`},
	} {
		t.Run(k.name, func(t *testing.T) {
			_, err := parseConfig([]byte(small + ", " + k.fields + "}"))
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, k.name)
		})
	}
	c, err := parseConfig([]byte(`{"model_type": "gemma3n_text"}`)) // the defaults of its class
	require.NoError(t, err)
	require.Equal(t, 0.95, c.Sparsity[9])
	require.Equal(t, []int{512, 512, 512, 512, 0}, c.Windows[:5])
}
