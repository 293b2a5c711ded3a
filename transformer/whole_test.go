package transformer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestWholeFlat: the fields of a text are the same beside those of the whole model, as Qwen2.5-VL was published, and in text_config, as
// transformers writes them.
func TestWholeFlat(t *testing.T) {
	const text = `"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":2,"num_key_value_heads":1,"intermediate_size":96,"vocab_size":100,
		"rms_norm_eps":1e-6,"rope_theta":1e5,"rope_scaling":{"type":"mrope","mrope_section":[4,6,6]},"max_window_layers":70,"sliding_window":32,
		"initializer_range":0.01,"use_sliding_window":false`
	const outer = `"model_type":"qwen2_5_vl","architectures":["Qwen2_5_VLForConditionalGeneration"],"image_token_id":5,"vision_config":{"depth":2},"torch_dtype":"bfloat16"`
	flat, err := parseConfig([]byte(`{` + outer + `,` + text + `,"tie_word_embeddings":true}`))
	require.NoError(t, err)
	nested, err := parseConfig([]byte(`{` + outer + `,"tie_word_embeddings":true,"text_config":{"model_type":"qwen2_5_vl_text",` + text + `}}`))
	require.NoError(t, err)
	require.Empty(t, flat.Unread)
	require.Empty(t, nested.Unread)
	flat.Ignored, nested.Ignored = nil, nil
	require.Equal(t, nested, flat)
	require.Equal(t, [3]int{4, 6, 6}, flat.Rope.Sections)
	require.Equal(t, 0.01, flat.InitStd)
	require.True(t, flat.QKVBias && flat.Tied)
	require.Equal(t, []int{0, 0}, flat.Windows)
	flat.Whole = "" // alone it is a Qwen2
	require.NoError(t, flat.Write(t.TempDir()))

	standard, err := parseConfig([]byte(`{"model_type":"qwen2_5_vl"}`))
	require.NoError(t, err)
	require.Equal(t, []int{152064, 8192, 80, 32768}, []int{standard.Vocab, standard.Dim, standard.Layers, standard.Context})
	require.Equal(t, 1e-5, standard.NormEps)
	third, err := parseConfig([]byte(`{"model_type":"qwen3_vl","text_config":{"rope_scaling":{"rope_type":"default","mrope_section":[24,20,20]}}}`))
	require.NoError(t, err)
	require.True(t, third.Rope.Spread && third.QKNorm) // whatever mrope_interleaved is
	require.Equal(t, 500_000., third.Rope.Theta)
	for _, bad := range []string{`"text_config":{"model_type":"qwen2"}`, `"text_config":3`, `"hidden_size":"x"`, `"rope_scaling":{"rope_type":"axial","mrope_section":[16,24,24]}`} {
		_, err := parseConfig([]byte(`{"model_type":"qwen2_5_vl",` + bad + `}`))
		require.ErrorIs(t, err, snug.ErrConfig, bad)
	}
}
