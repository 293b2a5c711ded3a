package transformer

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/qlora"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// rope is what transformers makes of a rope: 8 hexadecimal digits for each float32.
type goldenRope struct {
	Inverse   string
	Attention float64
}

// goldenConfig is a config.json and the model that transformers makes of it.
type goldenConfig struct {
	Name   string
	Config json.RawMessage
	Want   struct {
		Family                                     string
		Whole                                      string
		Vocab, Dim, Hidden, Layers, Heads, Context int
		KVHeads                                    int     `json:"kv_heads"`
		HeadDim                                    int     `json:"head_dim"`
		LayerNorm                                  bool    `json:"layer_norm"`
		NormEps                                    float64 `json:"norm_eps"`
		NormPlusOne                                bool    `json:"norm_plus_one"`
		Parallel                                   bool
		OneNorm                                    bool `json:"one_norm"`
		PostNorms                                  bool `json:"post_norms"`
		QKNorm                                     bool `json:"qk_norm"`
		QKVBias                                    bool `json:"qkv_bias"`
		OutBias                                    bool `json:"out_bias"`
		MLPBias                                    bool `json:"mlp_bias"`
		Activation                                 Activation
		Gated, Tied                                bool
		LearnedPositions                           bool `json:"learned_positions"`
		Sinks                                      bool
		Experts                                    struct {
			Count, Chosen, Hidden    int
			Dense                    []bool
			Normalize, Bias, Clamped bool
			Limit, Alpha             float64
			RouterLoss               float64 `json:"router_loss"`
		}
		Windows          []int
		NoRope           []bool          `json:"no_rope"`
		ScoreScale       float64         `json:"score_scale"`
		ScoreCap         float64         `json:"score_cap"`
		LogitCap         float64         `json:"logit_cap"`
		QueryScale       float64         `json:"query_scale"`
		ResidualScale    float64         `json:"residual_scale"`
		LogitScale       float64         `json:"logit_scale"`
		EmbeddingScale   float64         `json:"embedding_scale"`
		Config           json.RawMessage // more fields of Config, by name
		AttentionDropout float64         `json:"attention_dropout"`
		ResidualDropout  float64         `json:"residual_dropout"`
		EmbeddingDropout float64         `json:"embedding_dropout"`
		InitStd          float64         `json:"init_std"`
		DType            string
		BOS, Pad         *int
		EOS              []int
		Tensors          struct {
			Count  int
			SHA256 string
		}
		Rope      *goldenRope
		LocalRope *goldenRope `json:"local_rope"`
	}
}

func readGolden(t testing.TB, name string, into any) {
	text, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, into))
}

func goldenConfigs(t testing.TB) []goldenConfig {
	type file struct{ Cases []goldenConfig }
	var all []goldenConfig
	for family, f := range readGoldens[file](t, "configs") {
		require.NotEmpty(t, f.Cases, family)
		for _, g := range f.Cases {
			if _, err := parseConfig(g.Config); strconv.IntSize < 64 && err != nil && strings.Contains(err.Error(), "elements are too many") {
				continue // a matrix of Command R+
			}
			all = append(all, g)
		}
	}
	return all
}

// TestConfigsOfTransformers reads every file as transformers does: its modules, its defaults
// and its parameters.
func TestConfigsOfTransformers(t *testing.T) {
	for _, g := range goldenConfigs(t) {
		c, err := parseConfig(g.Config)
		require.NoError(t, err, g.Name)
		w := g.Want
		if w.Vocab == 0 { // names and shapes only
			require.Equal(t, w.Family, c.Family, g.Name)
			require.Equal(t, w.Whole, c.Whole, g.Name)
			requireTensors(t, c, g)
			continue
		}
		dt := map[snug.DType]string{0: "None", snug.F32: "float32", snug.F16: "float16", snug.BF16: "bfloat16"}[c.DType]
		require.Equal(t, w.DType, dt, g.Name)
		require.InEpsilon(t, w.ScoreScale, c.ScoreScale, 1e-14, g.Name)
		want := Config{
			Family: w.Family, Whole: w.Whole, Vocab: w.Vocab, Dim: w.Dim, Hidden: w.Hidden, Layers: w.Layers, Heads: w.Heads,
			KVHeads: w.KVHeads, HeadDim: w.HeadDim, Context: w.Context, LayerNorm: w.LayerNorm, NormEps: w.NormEps,
			NormPlusOne: w.NormPlusOne, PostNorms: w.PostNorms, QKNorm: w.QKNorm, QKVBias: w.QKVBias, OutBias: w.OutBias, MLPBias: w.MLPBias,
			Activation: w.Activation, Gated: w.Gated, LearnedPositions: w.LearnedPositions, Windows: w.Windows, ScoreCap: w.ScoreCap,
			LogitCap: w.LogitCap, EmbeddingScale: w.EmbeddingScale, ResidualScale: w.ResidualScale, LogitScale: w.LogitScale, Tied: w.Tied, AttentionDropout: w.AttentionDropout,
			ResidualDropout: w.ResidualDropout, EmbeddingDropout: w.EmbeddingDropout, InitStd: w.InitStd, BOS: id(w.BOS), Pad: id(w.Pad),
			ScoreScale: c.ScoreScale, Rope: c.Rope, LocalRope: c.LocalRope, DType: c.DType, EOS: slices.Clip(w.EOS), Ignored: c.Ignored,
		}
		e := w.Experts
		want.Sinks, want.Experts = w.Sinks, Experts{Count: e.Count, Chosen: e.Chosen, Hidden: e.Hidden, Dense: e.Dense, Normalize: e.Normalize,
			Bias: e.Bias, Clamped: e.Clamped, Limit: e.Limit, Alpha: e.Alpha, RouterLoss: e.RouterLoss}
		want.Parallel, want.OneNorm = w.Parallel, w.OneNorm
		want.Stored, want.Floats = c.Stored, c.Floats
		if w.Config != nil {
			require.NoError(t, json.Unmarshal(w.Config, &want), g.Name)
		}
		if slices.Contains(w.NoRope, true) {
			want.NoRope = w.NoRope
		}
		require.Equal(t, g.Name == "gpt-oss-20b", c.Stored == qlora.MXFP4, g.Name)
		if len(want.EOS) == 0 {
			want.EOS = nil
		}
		require.Equal(t, want, *c, g.Name)
		require.Equal(t, w.QueryScale, c.Rope.QueryScale, g.Name)
		requireRope(t, w.Rope, c.Rope, 0, g.Name)
		requireRope(t, w.LocalRope, c.LocalRope, 0, g.Name)

		requireTensors(t, c, g)
	}
}

// requireTensors requires the names and shapes that transformers has.
func requireTensors(t *testing.T, c *Config, g goldenConfig) {
	want := g.Want.Tensors
	list, err := c.Tensors()
	require.NoError(t, err, g.Name)
	lines := make([]string, len(list))
	for i, tensor := range list {
		lines[i] = fmt.Sprintf("%s %s\n", tensor.Name, strings.ReplaceAll(fmt.Sprint(tensor.Shape), " ", ", "))
	}
	slices.Sort(lines)
	require.Len(t, lines, want.Count, g.Name)
	if c.Whole == "" { // transformers has other names in memory than published
		require.Equal(t, want.SHA256, fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(lines, "")))), g.Name)
		return
	}
	memory := c.tensors(c.layouts()[1])
	for i := range memory {
		lines[i] = fmt.Sprintf("%s %s\n", memory[i].Name, strings.ReplaceAll(fmt.Sprint(memory[i].Shape), " ", ", "))
	}
	slices.Sort(lines)
	require.Equal(t, want.SHA256, fmt.Sprintf("%x", sha256.Sum256([]byte(strings.Join(lines, "")))), g.Name)
}

func id(token *int) int {
	if token == nil {
		return -1
	}
	return *token
}

// TestIgnoredFields lists what a published file has that is not arithmetic.
func TestIgnoredFields(t *testing.T) {
	for _, g := range goldenConfigs(t) {
		c, err := parseConfig(g.Config)
		require.NoError(t, err)
		require.True(t, slices.IsSorted(c.Ignored))
		switch g.Name {
		case "smollm2-135m":
			require.Equal(t, []string{"is_llama_config", "pretraining_tp", "rope_interleaved", "transformers.js_config", "transformers_version", "use_cache"}, c.Ignored)
			require.Empty(t, c.Unread)
		case "gemma-3-4b":
			require.Equal(t, []string{"boi_token_index", "eoi_token_index", "image_token_index", "initializer_range", "mm_tokens_per_image",
				"transformers_version", "vision_config"}, c.Ignored)
		case "llama, default with fields":
			require.Equal(t, []string{"rope_parameters.factor"}, c.Ignored)
		}
	}
}

// change is a config.json with other fields; a nil value removes one.
func change(t testing.TB, base string, fields map[string]string) []byte {
	var m map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(base), &m))
	for key, value := range fields {
		if m[key] = json.RawMessage(value); value == "" {
			delete(m, key)
		}
	}
	text, err := json.Marshal(m)
	require.NoError(t, err)
	return text
}

func TestConfigErrors(t *testing.T) {
	llama, gemma3, gpt2 := `{"model_type":"llama"}`, `{"model_type":"gemma3_text"}`, `{"model_type":"gpt2"}`
	type fields = map[string]string
	for _, test := range []struct {
		base   string
		fields fields
		text   string
	}{
		{`{}`, nil, `model_type: "", want one of`},
		{`{"model_type":"bert"}`, nil, `model_type: "bert", want one of`},
		{`{"model_type":7}`, nil, "model_type: 7, want a string"},
		{llama, fields{"hidden_size": "4096.0"}, "hidden_size: 4096.0, want an integer"},
		{llama, fields{"hidden_size": "null"}, "hidden_size: null, want a value"},
		{llama, fields{"hidden_size": "-4"}, "-4"},
		{llama, fields{"hidden_size": "100000000000000000000"}, "hidden_size"},
		{llama, fields{"hidden_size": "4097"}, "hidden_size: 4097, want a multiple of num_attention_heads"},
		{llama, fields{"num_attention_heads": "0"}, "Heads: 0, want 1 to"},
		{llama, fields{"num_hidden_layers": "1000000000"}, "num_hidden_layers: 1000000000, want 1 to 4096"},
		{llama, fields{"num_hidden_layers": "0"}, "num_hidden_layers: 0"},
		{llama, fields{"num_key_value_heads": "5"}, "KVHeads: 5, want a divisor of the 32 heads"},
		{llama, fields{"head_dim": "0"}, "head_dim: 0, want a number of 1 or more"},
		{llama, fields{"num_key_value_heads": "0"}, "KVHeads: 0"},
		{llama, fields{"bos_token_id": "-2"}, "BOS: tokens -2, [2] and -1"},
		{llama, fields{"eos_token_id": "[-1]"}, "BOS: tokens 1, [-1] and -1"},
		{gpt2, fields{"n_inner": "0"}, "Hidden: 0"},
		{llama, fields{"head_dim": "7"}, "Dim: 7, want a multiple of 2"},
		{llama, fields{"hidden_act": `"relu"`}, `hidden_act: "relu", want one of`},
		{llama, fields{"rms_norm_eps": "-1"}, "NormEps: -1"},
		{llama, fields{"attention_bias": `"no"`}, `attention_bias: "no", want true or false`},
		{llama, fields{"quantization_config": `{"quant_method":"hqq","bits":4}`}, `quantization_config: the weights are stored quantized (quant_method "hqq"); take the folder of the unquantized model`},
		{llama, fields{"auto_map": `{"AutoConfig":"configuration_llama.LlamaConfig","AutoModel":"modeling.X"}`}, "auto_map: AutoModel is \"modeling.X\", a class of the folder's own code"},
		{llama, fields{"is_causal": "false"}, "is_causal: false is not supported"},
		{llama, fields{"per_layer_config": `{"0":{"hidden_act":"gelu"}}`}, "per_layer_config: "},
		{llama, fields{"original_max_position_embeddings": "4096", "rope_scaling": `{"type":"yarn","factor":2,"original_max_position_embeddings":2048}`},
			"original_max_position_embeddings: 4096, and rope_scaling.original_max_position_embeddings is 2048"},
		{llama, fields{"rope_scaling": `{"rope_type":"linear","factor":2}`, "rope_parameters": `{"rope_type":"linear","factor":4,"rope_theta":1}`},
			"rope_parameters is there too, and says something else"},
		{llama, fields{"architectures": `["LlamaForSequenceClassification"]`}, `architectures: "LlamaForSequenceClassification", want one of`},
		{llama, fields{"partial_rotary_factor": "0.5"}, "partial_rotary_factor: 0.5 is not supported"},
		{llama, fields{"rope_theta": "0"}, "Theta: 0"},
		{llama, fields{"rope_scaling": `{"type":"su","factor":2}`}, `rope_scaling.rope_type: "su", want default, linear, dynamic, llama3, yarn or longrope`},
		{llama, fields{"rope_scaling": `{"type":"linear","rope_type":"yarn"}`}, "rope_scaling.type: "},
		{llama, fields{"rope_scaling": `{"type":"linear"}`}, "rope_scaling: Factor: 0"},
		{llama, fields{"rope_scaling": `{"type":"linear","factor":0.5}`}, "Factor: 0.5, want 1 or more"},
		{llama, fields{"rope_scaling": `{"type":"linear","factor":2,"partial_rotary_factor":0.5}`}, "rope_scaling.partial_rotary_factor: 0.5"},
		{llama, fields{"rope_scaling": `{"type":"linear","factor":2}`, "rope_parameters": `{"rope_theta":1}`}, "rope_parameters is there too"},
		{llama, fields{"rope_theta": "10", "rope_parameters": `{"rope_theta":11}`}, "rope_theta: 10, and rope_parameters.rope_theta is 11"},
		{llama, fields{"rope_scaling": `[]`}, "rope_scaling: "},
		{llama, fields{"eos_token_id": `["a"]`}, `eos_token_id: [0]: "a", want an integer`},
		{`{"model_type":"mistral"}`, fields{"sliding_window": "0"}, "sliding_window: 0, want 1 or more"},
		{`{"model_type":"qwen2"}`, fields{"layer_types": `["full_attention"]`}, "layer_types: 1 layers, and num_hidden_layers is 32"},
		{`{"model_type":"qwen2"}`, fields{"num_hidden_layers": "1", "layer_types": `["sliding_attention"]`}, "sliding_window: layer 0 has a window"},
		{`{"model_type":"qwen2"}`, fields{"num_hidden_layers": "1", "layer_types": `["linear_attention"]`}, `layer_types: "linear_attention" in layer 0`},
		{`{"model_type":"mixtral"}`, fields{"router_jitter_noise": "0.1"}, "router_jitter_noise: 0.1 is not supported"},
		{`{"model_type":"mixtral"}`, fields{"num_local_experts": "0"}, "num_local_experts: 0, want 1 or more"},
		{`{"model_type":"mixtral"}`, fields{"num_local_experts": "8", "num_experts": "7"}, "num_experts: 7, and num_local_experts is 8"},
		{`{"model_type":"mixtral"}`, fields{"num_experts_per_tok": "9"}, "Experts.Chosen: 9, want 1 to the 8 experts"},
		{`{"model_type":"mixtral"}`, fields{"num_local_experts": "1000000"}, "Experts.Count: 1000000, want 1 to 4096"},
		{`{"model_type":"mixtral"}`, fields{"output_router_logits": "true", "router_aux_loss_coef": "-1"}, "Experts.RouterLoss: -1"},
		{`{"model_type":"mixtral"}`, fields{"quantization_config": `{"quant_method":"mxfp4"}`}, `quant_method "mxfp4"`},
		{`{"model_type":"qwen3_moe"}`, fields{"mlp_only_layers": "[24]"}, "mlp_only_layers: layer 24, want 0 to 23"},
		{`{"model_type":"qwen3_moe"}`, fields{"decoder_sparse_step": "0"}, "decoder_sparse_step: 0, want 1 or more"},
		{`{"model_type":"qwen3_moe"}`, fields{"decoder_sparse_step": "25"}, "decoder_sparse_step: with mlp_only_layers it leaves no layer with experts"},
		{`{"model_type":"qwen3_moe"}`, fields{"moe_intermediate_size": "0"}, "moe_intermediate_size: 0, want 1 or more"},
		{`{"model_type":"qwen3_moe"}`, fields{"use_sliding_window": "true", "sliding_window": "0"}, "sliding_window: 0, want 1 or more"},
		{`{"model_type":"gpt_oss"}`, fields{"swiglu_limit": "0"}, "Experts.Limit: 0"},
		{`{"model_type":"gpt_oss"}`, fields{"sliding_window": "null"}, "sliding_window: layer 0 has a window"},
		{gemma3, fields{"use_bidirectional_attention": "true"}, "use_bidirectional_attention: true"},
		{gemma3, fields{"query_pre_attn_scalar": "0"}, "query_pre_attn_scalar: 0"},
		{gemma3, fields{"sliding_window_pattern": "0"}, "sliding_window_pattern: 0"},
		{gemma3, fields{"final_logit_softcapping": "0"}, "final_logit_softcapping: 0"},
		{gemma3, fields{"rope_scaling": `{"type":"yarn","factor":2,"truncate":false}`}, "truncate: false, which transformers does not apply"},
		{gemma3, fields{"rope_parameters": `{"rope_theta":1}`}, "rope_parameters.rope_theta: 1, want a rope for each of full_attention and sliding_attention"},
		{gemma3, fields{"head_dim": "null"}, "head_dim: "},
		{`{"model_type":"gemma2"}`, fields{"sliding_window": "null"}, "sliding_window: layer 0 has a window"},
		{gpt2, fields{"scale_attn_by_inverse_layer_idx": "true"}, "scale_attn_by_inverse_layer_idx: true"},
		{gpt2, fields{"add_cross_attention": "true"}, "add_cross_attention: true"},
		{gpt2, fields{"n_embd": "768", "hidden_size": "1"}, "hidden_size: 1, and n_embd is 768"},
		{gpt2, fields{"n_head": "7"}, "n_embd: 768, want a multiple of n_head, which is 7"},
		{gpt2, fields{"n_layer": "1000000000"}, "n_layer: 1000000000"},
		{gpt2, fields{"resid_pdrop": "1.0"}, "dropout of 1 or more"},
		{`{"model_type":"gemma3","text_config":{"model_type":"llama"}}`, nil, "text_config.model_type: "},
		{`{"model_type":"gemma3","text_config":3}`, nil, "text_config: "},
		{`{"model_type":"gemma3","quantization_config":{}}`, nil, "quantization_config: the weights are stored quantized"},
		{`{"model_type":"gemma3","text_config":{"tie_word_embeddings":false}}`, nil, "text_config.tie_word_embeddings: false, and the whole model does not say it"},
		{`{"model_type":"gemma3","tie_word_embeddings":true,"text_config":{"tie_word_embeddings":false}}`, nil, "tie_word_embeddings: "},
	} {
		_, err := parseConfig(change(t, test.base, test.fields))
		require.ErrorIs(t, err, snug.ErrConfig, "%s %v", test.base, test.fields)
		require.ErrorContains(t, err, test.text, "%s %v", test.base, test.fields)
	}
	for _, text := range []string{"", "[]", "null", "{", `{"a":1,"a":2}`, "\xff", `{"model_type":"llama"} {}`} {
		_, err := parseConfig([]byte(text))
		require.ErrorIs(t, err, snug.ErrCorrupt, text)
	}
}

func TestReadConfig(t *testing.T) {
	dir := t.TempDir()
	_, err := ReadConfig(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = ReadConfig(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "transformer: ReadConfig: "+dir+" has no config.json")
	path := filepath.Join(dir, "config.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"model_type":"llama"}`), 0o600))
	snapshot := filepath.Join(dir, "cache", "snapshots", "0123")
	require.NoError(t, os.MkdirAll(snapshot, 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "cache", "blobs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cache", "blobs", "ab"), []byte(`{"model_type":"llama"}`), 0o600))
	paths := []string{dir, path}
	if err := os.Symlink("../../blobs/ab", filepath.Join(snapshot, "config.json")); err == nil { // as in the cache of huggingface_hub
		paths = append(paths, snapshot)
	}
	for _, p := range paths {
		c, err := ReadConfig(p)
		require.NoError(t, err)
		require.Equal(t, 11008, c.Hidden)
	}
	require.NoError(t, os.WriteFile(path, []byte(`{"model_type":"bert"}`), 0o600))
	_, err = ReadConfig(dir)
	require.ErrorContains(t, err, "transformer: ReadConfig: "+dir+": model_type")
	require.NoError(t, os.Truncate(path, files.Description.Limit()+1))
	_, err = ReadConfig(dir)
	require.ErrorIs(t, err, snug.ErrCorrupt)
}

// TestWriteConfig writes every file that was read, and reads it again. The texts are in
// testdata/written, which testdata/make.py reads with transformers.
//
//check:not bits32
func TestWriteConfig(t *testing.T) {
	texts := map[string]map[string]string{} // by family
	for _, g := range goldenConfigs(t) {
		c, err := parseConfig(g.Config)
		require.NoError(t, err)
		c.Stored, c.Floats = 0, nil // a Model is saved in floats
		dir := filepath.Join(t.TempDir(), "new")
		err = c.Write(dir)
		if c.Whole != "" {
			require.ErrorIs(t, err, snug.ErrConfig)
			require.ErrorContains(t, err, `transformer: Write: Whole: "`)
			continue
		}
		require.NoError(t, err, g.Name)
		again, err := ReadConfig(dir)
		require.NoError(t, err, g.Name)
		require.NoError(t, c.differs(*again), g.Name)
		text, err := os.ReadFile(filepath.Join(dir, configName))
		require.NoError(t, err)
		if strings.HasSuffix(g.Name, ", defaults") {
			continue
		}
		var b strings.Builder
		for _, line := range strings.Split(string(text), "\n") {
			b.WriteString(strings.TrimSpace(line))
		}
		family := strings.TrimSuffix(c.Family, "_text") // as the scripts call it
		if texts[family] == nil {
			texts[family] = map[string]string{}
		}
		texts[family][g.Name] = b.String()
	}
	if os.Getenv("UPDATE") != "" {
		for family, own := range texts {
			text, err := json.MarshalIndent(own, "", "")
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join("testdata", "written", family+".json"), append(text, '\n'), 0o644))
		}
	}
	require.Equal(t, readGoldens[map[string]string](t, "written"), texts)
}

// TestWriteWhatAFamilyCannotSay changes one field at a time.
func TestWriteWhatAFamilyCannotSay(t *testing.T) {
	for name, do := range map[string]func(c *Config){
		"LogitCap": func(c *Config) { c.LogitCap = 30 }, "QKNorm": func(c *Config) { c.QKNorm = true },
		"OutBias": func(c *Config) { c.OutBias = true }, "Windows": func(c *Config) { c.Windows[3] = 5 },
		"ScoreScale": func(c *Config) { c.ScoreScale = 1 }, "EmbeddingScale": func(c *Config) { c.EmbeddingScale = 2 },
		"ResidualScale": func(c *Config) { c.ResidualScale = 2 }, "LogitScale": func(c *Config) { c.LogitScale = 2 },
		"Gated": func(c *Config) { c.Gated = false }, "PostNorms": func(c *Config) { c.PostNorms = true },
		"LocalRope":       func(c *Config) { c.LocalRope = Rope{Kind: RopeDefault, Theta: 5, Dim: c.HeadDim} },
		"LayerNorm":       func(c *Config) { c.LayerNorm = true },
		"Family":          func(c *Config) { c.Family = "bert" },
		"Vocab":           func(c *Config) { c.Vocab = 0 },
		"NormEps":         func(c *Config) { c.NormEps = 0 },
		"Rope":            func(c *Config) { c.Rope.Dim = 64 },
		"ResidualDropout": func(c *Config) { c.ResidualDropout = 0.1 },
	} {
		t.Run(name, func(t *testing.T) {
			c, err := parseConfig([]byte(`{"model_type":"llama"}`))
			require.NoError(t, err)
			do(c)
			dir := t.TempDir()
			err = c.Write(dir)
			require.ErrorIs(t, err, snug.ErrConfig, name)
			require.ErrorContains(t, err, "transformer: Write: "+name, name)
			require.NoFileExists(t, filepath.Join(dir, configName))
		})
	}
	var none *Config
	require.ErrorIs(t, none.Write(t.TempDir()), snug.ErrConfig)
	require.ErrorIs(t, none.Validate(), snug.ErrConfig)
	require.ErrorIs(t, new(Config).Validate(), snug.ErrConfig)
	_, err := none.Tensors()
	require.ErrorIs(t, err, snug.ErrConfig)
	_, err = new(Config).Check(nil)
	require.ErrorIs(t, err, snug.ErrConfig)
}

// configProperty changes fields of a family to any values: it is read and comes back
// from what is written, or it is an error.
func configProperty(t *rapid.T) {
	fields := map[string]string{"model_type": strconv.Quote(rapid.SampledFrom(append(familyNames(), "gemma3")).Draw(t, "family"))}
	names := []string{"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "n_embd", "n_head",
		"rope_theta", "sliding_window", "layer_types", "tie_word_embeddings", "eos_token_id", "query_pre_attn_scalar", "rope_scaling",
		"attention_bias", "hidden_act", "use_sliding_window", "max_window_layers", "rope_parameters", "attn_logit_softcapping", "text_config"}
	values := []string{"null", "0", "1", "2", "4", "8", "64", "-1", "1e3", "0.5", "true", "false", `"silu"`, `"gelu"`, "[1,2]", "{}", `{"rope_type":"linear","factor":2}`,
		`["full_attention"]`, `["sliding_attention","full_attention"]`, `{"rope_type":"yarn","factor":2,"original_max_position_embeddings":64}`,
		`{"rope_type":"dynamic","factor":2,"rope_theta":3}`, "268435457"}
	for range rapid.IntRange(0, 6).Draw(t, "fields") {
		fields[rapid.SampledFrom(names).Draw(t, "name")] = rapid.SampledFrom(values).Draw(t, "value")
	}
	var b strings.Builder
	for i, key := range slices.Sorted(mapKeys(fields)) {
		fmt.Fprintf(&b, "%s%q:%s", map[bool]string{true: ",", false: "{"}[i > 0], key, fields[key])
	}
	c, err := parseConfig([]byte(b.String() + "}"))
	if err != nil {
		require.ErrorIs(t, err, snug.ErrConfig)
		return
	}
	list, err := c.Tensors()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, tensor := range list {
		require.Positive(t, tensor.Len())
		require.False(t, seen[tensor.Name])
		seen[tensor.Name] = true
	}
	if c.Whole != "" {
		return
	}
	text, err := c.encode()
	require.NoError(t, err)
	again, err := parseConfig(text)
	require.NoError(t, err)
	require.NoError(t, c.differs(*again))
}

func mapKeys(m map[string]string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

func TestConfigProperty(t *testing.T) { rapid.Check(t, configProperty) }
func FuzzConfig(f *testing.F)         { f.Fuzz(rapid.MakeFuzz(configProperty)) }

// FuzzParseConfig reads any text.
func FuzzParseConfig(f *testing.F) {
	for _, g := range goldenConfigs(f) {
		f.Add([]byte(g.Config))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parseConfig(text)
		if err != nil {
			return
		}
		require.NoError(t, c.Validate())
		if c.Stored, c.Floats = 0, nil; c.Whole == "" {
			_, err = c.encode()
			require.NoError(t, err)
		}
	})
}

// TestOpenComparesFirst: weights that do not fit config.json are refused before there is memory for what it describes.
func TestOpenComparesFirst(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(filepath.Join("testdata", "models", "llama"))))
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, bytes.Replace(text, []byte(`"vocab_size": 48`), []byte(`"vocab_size": 33554432`), 1), 0o600))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err = Open(dir, Options{})
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "want [33554432 32]")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(10<<20), "two matrices would take 4 GiB")
}
