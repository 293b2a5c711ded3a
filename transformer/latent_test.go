package transformer

import (
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/stretchr/testify/require"
)

// TestLatentRefuses: what goes with attention and not with a Latent is an error before anything is computed.
func TestLatentRefuses(t *testing.T) {
	dir := "testdata/models/deepseek_v3"
	_, err := Open(dir, Options{Device: kerneltest.Backends(t)[2].Dev})
	require.ErrorIs(t, err, snug.ErrDevice)
	require.ErrorContains(t, err, "latent attention")
	_, err = Open(dir, Options{PlainAttention: true})
	require.ErrorIs(t, err, snug.ErrConfig)
	m, err := Open(dir, Options{})
	require.NoError(t, err)
	b := someBatch(1, m.Config().Vocab, 1, 6)
	b.Spans = [][2]int{{1, 3}}
	_, err = m.Evaluate(t.Context(), b)
	require.ErrorIs(t, err, snug.ErrConfig)
	c := m.Config()
	for name, change := range map[string]func(c *Config){
		"a window":          func(c *Config) { c.Windows = []int{4, 4} },
		"other heads":       func(c *Config) { c.KVHeads = 2 },
		"another rope":      func(c *Config) { c.Rope.Dim = 4 },
		"no values":         func(c *Config) { c.Latent.ValueDim = 0 },
		"norms of heads":    func(c *Config) { c.QKNorm = true },
		"groups of nothing": func(c *Config) { c.Experts.Groups = 3 },
		"few experts":       func(c *Config) { c.Experts.Chosen = 5 },
		"a negative scale":  func(c *Config) { c.Experts.Scale = -1 },
		"a gate of nothing": func(c *Config) { c.Experts.Shared, c.Experts.SharedGate = 0, true },
	} {
		bad := c
		change(&bad)
		require.ErrorIs(t, bad.Validate(), snug.ErrConfig, name)
	}
	require.NoError(t, m.Close())
	custom := tinyCustom()
	custom.Latent = c.Latent
	require.ErrorIs(t, custom.Validate(), snug.ErrConfig)
	c.ResidualScale = 0.5
	_, err = New(&c, Options{})
	require.ErrorIs(t, err, snug.ErrConfig)
}

// TestCorrectionsAreFloat32: the numbers that correct the choice of experts are float32 in a model of 16 bits, begin as zeros, and are
// saved as they are.
func TestCorrectionsAreFloat32(t *testing.T) {
	c, err := ReadConfig("testdata/models/deepseek_v3")
	require.NoError(t, err)
	m, err := New(c, Options{DType: snug.BF16})
	require.NoError(t, err)
	name := "model.layers.1.mlp.gate.e_score_correction_bias"
	x := m.index[name].Value
	require.Equal(t, make([]float32, 8), x.Float32s())
	require.False(t, m.index[name].Trains)
	x.Float32s()[3] = 1.0009765625 // which bfloat16 lacks
	dir := t.TempDir()
	require.NoError(t, m.Save(dir, 0))
	again, err := Open(dir, Options{DType: snug.BF16})
	require.NoError(t, err)
	require.Equal(t, x.Float32s(), again.index[name].Value.Float32s())
	require.NoError(t, again.Close())
	require.NoError(t, m.Close())
}

// TestLayersWithoutExperts: first_k_dense_replace counts for DeepSeek, and mlp_layer_types alone for GLM-4.7-Flash, as in transformers.
func TestLayersWithoutExperts(t *testing.T) {
	for name, row := range map[string]struct {
		config string
		want   []bool
	}{
		"deepseek":      {`{"model_type":"deepseek_v3","num_hidden_layers":4,"first_k_dense_replace":2}`, []bool{true, true, false, false}},
		"none":          {`{"model_type":"deepseek_v3","num_hidden_layers":2,"first_k_dense_replace":0}`, nil},
		"glm":           {`{"model_type":"glm4_moe_lite","num_hidden_layers":3,"first_k_dense_replace":2}`, []bool{true, false, false}},
		"glm, by types": {`{"model_type":"glm4_moe_lite","num_hidden_layers":2,"mlp_layer_types":["sparse","dense"]}`, []bool{false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parseConfig([]byte(row.config))
			require.NoError(t, err)
			require.Equal(t, row.want, c.Experts.Dense)
		})
	}
}
