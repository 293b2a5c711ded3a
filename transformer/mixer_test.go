package transformer

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/kerneltest"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
)

// TestMixersRefused: what a Config, a device, an option and a prefix cannot have of layers without attention.
func TestMixersRefused(t *testing.T) {
	config, err := ReadConfig("testdata/models/lfm2")
	require.NoError(t, err)
	for name, row := range map[string]struct {
		change func(c *Config)
		want   string
	}{
		"layers":       {func(c *Config) { c.Mixers = c.Mixers[:1] }, "1 layers, want 4 or nil"},
		"unknown":      {func(c *Config) { c.Mixers = []Mixer{"", "", "x", ""} }, `"x" in layer 2`},
		"no taps":      {func(c *Config) { c.ConvTaps = 0 }, "want 1 to 256"},
		"many taps":    {func(c *Config) { c.ConvTaps = 257 }, "want 1 to 256"},
		"window":       {func(c *Config) { c.Windows = []int{3, 0, 0, 0} }, "layer 0, which has no attention"},
		"other family": {func(c *Config) { c.Family, c.QKNorm = Llama, false }, `models of the family "llama" have none`},
	} {
		t.Run(name, func(t *testing.T) {
			c := *config
			row.change(&c)
			_, err := New(&c, Options{})
			kerneltest.Error(t, "transformer.New", err)
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, row.want)
		})
	}
	_, err = New(config, Options{Device: kerneltest.Backends(t)[2].Dev})
	require.ErrorIs(t, err, snug.ErrDevice)
	require.ErrorContains(t, err, "the CPU alone computes (conv)")

	m, err := Open("testdata/models/lfm2", Options{})
	require.NoError(t, err)
	g, err := m.Generate(GenerateOptions{})
	require.NoError(t, err)
	require.NoError(t, g.Prompt(t.Context(), []int32{3, 1, 4, 1, 5}))
	_, err = g.Prefix(2)
	require.ErrorIs(t, err, snug.ErrConfig)
	require.ErrorContains(t, err, "the state of layers without attention")
	require.ErrorIs(t, g.CheckPrefix(), snug.ErrConfig)
}

// TestMambaRefused: what a Config cannot have of a Mamba2, and what files of others cannot hold.
func TestMambaRefused(t *testing.T) {
	config, err := ReadConfig("testdata/models/falcon_h1")
	require.NoError(t, err)
	for name, row := range map[string]struct {
		change func(c *Config)
		want   string
	}{
		"no heads":     {func(c *Config) { c.Mamba.Heads = 0 }, "Mamba.Heads: 0, want 1"},
		"groups":       {func(c *Config) { c.Mamba.Groups = 4 }, "a divisor of the 6 heads"},
		"taps":         {func(c *Config) { c.Mamba.Taps = 257 }, "want 1 to 256"},
		"large":        {func(c *Config) { c.Mamba.Heads, c.Mamba.HeadDim = 1<<27, 1<<27 }, "too many"},
		"norm first":   {func(c *Config) { c.Mamba.NormFirst = true }, "without a Norm"},
		"limits":       {func(c *Config) { c.Mamba.StepMin, c.Mamba.StepMax = 2, 1 }, "the second not less"},
		"factors":      {func(c *Config) { c.Mamba.Factors[2] = math.NaN() }, "NaN in place 2"},
		"out factor":   {func(c *Config) { c.Mamba.OutFactor = -1 }, "OutFactor: -1"},
		"no attention": {func(c *Config) { c.Mamba.Beside = false }, "Mamba"},
		"some layers":  {func(c *Config) { c.Mixers = []Mixer{Mamba2, ""} }, "Mixers"},
		"no mixers":    {func(c *Config) { c.Mixers = nil }, "beside no Mixers"},
		"other family": {func(c *Config) { c.Family = Llama }, `models of the family "llama" have none`},
	} {
		t.Run(name, func(t *testing.T) {
			c := *config
			row.change(&c)
			_, err := New(&c, Options{})
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, row.want)
		})
	}
	for name, text := range map[string]string{
		"experts":           `{"model_type":"granitemoehybrid"}`,
		"heads":             `{"model_type":"falcon_h1","mamba_n_heads":3}`,
		"limit":             `{"model_type":"falcon_h1","time_step_limit":[0,0]}`,
		"limits":            `{"model_type":"falcon_h1","time_step_limit":[1]}`,
		"multipliers":       `{"model_type":"falcon_h1","ssm_multipliers":[1,1]}`,
		"a multiplier of 0": `{"model_type":"falcon_h1","key_multiplier":0}`,
		"input and bias":    `{"model_type":"falcon_h1","attention_in_multiplier":2,"attention_bias":true}`,
		"types":             `{"model_type":"granitemoehybrid","num_local_experts":0,"num_hidden_layers":1,"layer_types":["conv"]}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseConfig([]byte(text))
			require.ErrorIs(t, err, snug.ErrConfig)
		})
	}
	c, err := parseConfig([]byte(`{"model_type":"falcon_h1","time_step_limit":[0.5,{"__float__":"Infinity"}]}`))
	require.NoError(t, err)
	require.Equal(t, [2]float64{0.5, 0}, [2]float64{c.Mamba.StepMin, c.Mamba.StepMax})
	m, err := Open("testdata/models/falcon_h1", Options{})
	require.NoError(t, err)
	require.ErrorIs(t, m.SaveGGUF(filepath.Join(t.TempDir(), "m.gguf"), GGUFOptions{}), snug.ErrConfig)
}

// TestStateSpaceActivation: hidden_act is also that behind the convolution of families with a state space, where SiLU alone is known.
func TestStateSpaceActivation(t *testing.T) {
	for _, base := range []string{`{"model_type":"falcon_h1"}`, `{"model_type":"granitemoehybrid","num_local_experts":0}`, `{"model_type":"qwen3_5_text"}`} {
		for value, known := range map[string]bool{"silu": true, "swish": true, "gelu": false, "gelu_pytorch_tanh": false, "relu2": false} {
			c, err := parseConfig(change(t, base, map[string]string{"hidden_act": strconv.Quote(value)}))
			if !known {
				require.ErrorIs(t, err, snug.ErrConfig)
				require.ErrorContains(t, err, "hidden_act: ", base)
				continue
			}
			require.NoError(t, err, base)
			c.Activation = GELU
			_, err = c.encode()
			require.ErrorContains(t, err, "Activation: gelu", base)
		}
	}
}

// TestNumbersOfPython: config.json may have the words of Python's json for infinite numbers, and Save writes what both read.
func TestNumbersOfPython(t *testing.T) {
	const base = `{"model_type":"falcon_h1","mamba_n_heads":16,"time_step_limit":[0.5, `
	for text, want := range map[string]float64{"Infinity": 0, "1e999": 0, `{"__float__":"Infinity"}`: 0, "2.0": 2} {
		c, err := parseConfig([]byte(base + text + "]}"))
		require.NoError(t, err, text)
		require.Equal(t, 0.5, c.Mamba.StepMin)
		require.Equal(t, want, c.Mamba.StepMax, text)
		written, err := c.encode()
		require.NoError(t, err)
		require.True(t, json.Valid(written))
	}
	c, err := parseConfig([]byte(`{"model_type":"llama","a":-Infinity,"b":NaN}`))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, c.Ignored)
	for _, text := range []string{"NaN", "-Infinity"} {
		_, err := parseConfig([]byte(base + text + "]}"))
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "time_step_limit: ")
		_, err = parseConfig([]byte(`{"model_type":"llama","rms_norm_eps":` + text + `}`))
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "rms_norm_eps: ")
	}
}

// TestOutOfMambaUnadapted: PEFT refuses adapters of out_proj of Falcon-H1's Mamba2, so that "all-linear" leaves it out.
func TestOutOfMambaUnadapted(t *testing.T) {
	dir := filepath.Join("testdata", "models", "falcon_h1")
	for _, pattern := range []string{"", "all-linear"} {
		m, err := Open(dir, Options{Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Targets: qlora.Modules{Pattern: pattern}}})
		require.NoError(t, err)
		count := 0
		for _, p := range m.Params() {
			require.NotContains(t, p.Name, "out_proj.lora", "pattern %q", pattern)
			if strings.Contains(p.Name, "mamba.in_proj.lora_A") {
				count++
			}
		}
		require.Equal(t, m.config.Layers, count)
		to := t.TempDir()
		require.NoError(t, m.SaveAdapter(to))
		o, _, err := qlora.LoadAdapters(to, nil)
		require.NoError(t, err)
		require.NotContains(t, strings.Join(o.Targets.Names, " "), "out_proj")
		require.NoError(t, m.Close())
	}
	for _, target := range []qlora.Modules{{Names: []string{"q_proj", "out_proj"}}, {Pattern: `.*mamba\.out_proj`}} {
		_, err := Open(dir, Options{Adapter: &qlora.AdapterOptions{Rank: 2, Alpha: 2, Targets: target}})
		require.ErrorIs(t, err, snug.ErrConfig)
		require.ErrorContains(t, err, "select model.layers.0.mamba.out_proj, which PEFT does not adapt in models of falcon_h1")
	}
}

// TestMixersPacked: packed sequences have the loss and the gradients of sequences alone, and a Generator the logits of a whole text whatever its chunks.
func TestMixersPacked(t *testing.T) {
	for _, name := range []string{"lfm2", "granitemoehybrid", "falcon_h1"} {
		t.Run(name, func(t *testing.T) { packedMixers(t, name) })
	}
}

func packedMixers(t *testing.T, name string) {
	m, err := Open("testdata/models/"+name, Options{})
	require.NoError(t, err)
	tokens, starts := []int32{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5}, []int{0, 1, 6, 11}
	vocab := m.Config().Vocab
	packed := make([]float32, len(tokens)*vocab)
	rows := make([]int32, len(tokens))
	for i := range rows {
		rows[i] = int32(i)
	}
	require.NoError(t, m.Logits(t.Context(), packed, Batch{Tokens: tokens, Starts: starts}, rows))
	for i, lo := range starts[:3] {
		own := tokens[lo:starts[i+1]]
		alone := make([]float32, len(own)*vocab)
		require.NoError(t, m.Logits(t.Context(), alone, Batch{Tokens: own}, rows[:len(own)]))
		require.InDeltaSlice(t, alone, packed[lo*vocab:starts[i+1]*vocab], 1e-5)
		for _, chunk := range []int{1, 2, 256} {
			t.Run(fmt.Sprintf("sequence %d, chunks of %d", i, chunk), func(t *testing.T) {
				g, err := m.Generate(GenerateOptions{Chunk: chunk})
				require.NoError(t, err)
				for range 2 { // again after Reset
					require.NoError(t, g.Prompt(t.Context(), own))
					_, err = g.Next(t.Context())
					require.NoError(t, err)
					require.InDeltaSlice(t, alone[(len(own)-1)*vocab:], g.Logits(), 1e-5)
					g.Reset()
				}
			})
		}
	}
}
