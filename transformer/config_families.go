package transformer

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
)

// family is a model_type.
type family struct {
	read  func(f *fields, c *Config)
	class string // of transformers, before ForCausalLM
	std   defaults
}

// defaults are the fields that families leave out, as transformers fills them.
type defaults struct {
	vocab, dim, hidden, layers, heads int
	kvHeads                           int // 0: heads
	headDim                           int // 0: dim/heads
	context                           int
	bos, eos, pad                     int
	tied                              bool
	eps                               float64 // of norms, 0: 1e-6
	theta                             float64 // of the rope, 0: 10000
	experts                           Experts
}

// families has each family by its model_type. The defaults are the defaults of transformers 5.23.
var families = map[string]family{
	"llama": {readLlama, "Llama", defaults{vocab: 32000, dim: 4096, hidden: 11008, layers: 32, heads: 32,
		context: 2048, bos: 1, eos: 2, pad: -1}},
	"mistral": {readMistral, "Mistral", defaults{vocab: 32000, dim: 4096, hidden: 14336, layers: 32, heads: 32, kvHeads: 8,
		context: 131072, bos: 1, eos: 2, pad: -1}},
	"qwen2": {readQwen2, "Qwen2", defaults{vocab: 151936, dim: 4096, hidden: 22016, layers: 32, heads: 32, kvHeads: 32,
		context: 32768, bos: -1, eos: -1, pad: -1}},
	"qwen3": {readQwen3, "Qwen3", defaults{vocab: 151936, dim: 4096, hidden: 22016, layers: 32, heads: 32, kvHeads: 32, headDim: 128,
		context: 32768, bos: -1, eos: -1, pad: -1}},
	"gemma2": {readGemma2, "Gemma2", defaults{vocab: 256000, dim: 2304, hidden: 9216, layers: 26, heads: 8, kvHeads: 4, headDim: 256,
		context: 8192, bos: 2, eos: 1, pad: 0, tied: true}},
	"gemma3_text": {readGemma3, "Gemma3", defaults{vocab: 262208, dim: 2304, hidden: 9216, layers: 26, heads: 8, kvHeads: 4, headDim: 256,
		context: 131072, bos: 2, eos: 1, pad: 0, tied: true}},
	"mixtral": {readMixtral, "Mixtral", defaults{vocab: 32000, dim: 4096, hidden: 14336, layers: 32, heads: 32, kvHeads: 8,
		context: 131072, bos: 1, eos: 2, pad: -1, eps: 1e-5, theta: 1e6, experts: Experts{Count: 8, Chosen: 2, Normalize: true}}},
	"qwen3_moe": {readQwen3MoE, "Qwen3Moe", defaults{vocab: 151936, dim: 2048, hidden: 6144, layers: 24, heads: 32, kvHeads: 4,
		context: 32768, bos: -1, eos: -1, pad: -1, experts: Experts{Count: 128, Chosen: 8, Hidden: 768}}},
	"gpt_oss": {readGPTOSS, "GptOss", defaults{vocab: 201088, dim: 2880, hidden: 2880, layers: 36, heads: 64, kvHeads: 8, headDim: 64,
		context: 131072, bos: -1, eos: -1, pad: -1, eps: 1e-5, theta: 150_000,
		experts: Experts{Count: 128, Chosen: 4, Normalize: true, Bias: true, Clamped: true, Alpha: 1.702, Limit: 7}}},
	"gpt2": {readGPT2, "GPT2", defaults{vocab: 50257, dim: 768, layers: 12, heads: 12,
		context: 1024, bos: 50256, eos: 50256, pad: -1, tied: true}},
}

func familyNames() []string { return slices.Sorted(maps.Keys(families)) }

// multimodal is the model_type that has a text_config of gemma3_text.
const multimodal = "gemma3"

// parseConfig reads a config.json.
func parseConfig(text []byte) (*Config, error) {
	c := &Config{}
	f, err := newFields(text, "", c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	c.Family = get(f, "model_type", "")
	if f.err == nil && c.Family == multimodal {
		if f, err = c.enterText(f); err != nil {
			return nil, err
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	fam, known := families[c.Family]
	if !known {
		return nil, bad("model_type", "%.40q, want one of %q or %q", c.Family, familyNames(), multimodal)
	}
	if err := c.readCommon(f, fam); err != nil {
		return nil, err
	}
	slices.Sort(c.Ignored)
	slices.Sort(c.Unread)
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Floats = c.unconverted(f.unconverted)
	return c, nil
}

// readCommon reads what all families have, and the family.
func (c *Config) readCommon(f *fields, fam family) error {
	f.std = fam.std
	if err := c.readStored(f); err != nil {
		return err
	}
	c.readArchitecture(f, fam.class)
	c.readDType(f)
	c.InitStd = optional(f, "initializer_range", 0.02)
	c.BOS = none(f, "bos_token_id", fam.std.bos)
	c.Pad = none(f, "pad_token_id", fam.std.pad)
	c.readEOS(f, fam.std.eos)
	c.Tied = optional(f, "tie_word_embeddings", fam.std.tied)
	f.only("is_causal", "true") // which the masks of all families read
	f.only("per_layer_config", "{}")
	f.only("pruned_heads", "{}") // of transformers 4
	c.readAutoMap(f, fam.class)
	c.ScoreScale, c.EmbeddingScale = math.NaN(), 1
	fam.read(f, c)
	if f.err == nil && math.IsNaN(c.ScoreScale) {
		c.ScoreScale = 1 / math.Sqrt(float64(c.HeadDim))
	}
	if f.has("use_qk_norm") && c.QKNorm { // it cannot be switched off
		if f.ignore("use_qk_norm"); bytesOf(f, "use_qk_norm") != "true" {
			*f.unread = append(*f.unread, f.path+"use_qk_norm")
		}
	}
	return f.rest()
}

// readDType reads the type of the published weights. The tensors have types of their own, so that another one here is as
// none. If both spellings are there, transformers takes dtype.
func (c *Config) readDType(f *fields) {
	name := "dtype"
	if !f.has(name) {
		f.taken[name] = true
		name = "torch_dtype"
	} else if f.has("torch_dtype") && compact(f.raw["torch_dtype"]) != compact(f.raw[name]) {
		f.notRead("torch_dtype")
	}
	f.taken["torch_dtype"], f.taken[name] = true, true
	switch strings.TrimPrefix(strings.Trim(bytesOf(f, name), `"`), "torch.") {
	case "float32", "float":
		c.DType = snug.F32
	case "float16", "half":
		c.DType = snug.F16
	case "bfloat16":
		c.DType = snug.BF16
	default:
		if f.has(name) {
			f.notRead(name)
		}
	}
}

// none returns the token of a field, -1 for null and for what is no number.
func none(f *fields, name string, standard int) int {
	minus := -1
	if raw := bytesOf(f, name); raw != "" && strings.ContainsRune(`"[{tf`, rune(raw[0])) {
		f.notRead(name)
		return minus
	}
	return getNull(f, name, standard, &minus)
}

// readEOS reads a token, a list of tokens, or null.
func (c *Config) readEOS(f *fields, standard int) {
	if raw := bytesOf(f, "eos_token_id"); strings.HasPrefix(raw, "[") {
		c.EOS = get[[]int](f, "eos_token_id", nil)
		return
	}
	minus := -1
	if id := getNull(f, "eos_token_id", standard, &minus); id != -1 {
		c.EOS = []int{id}
	}
}

func bytesOf(f *fields, name string) string { return strings.TrimSpace(string(f.raw[name])) }

// readSizes reads the counts of all families but gpt2.
func (c *Config) readSizes(f *fields, nullKV bool) {
	std := f.std
	c.Vocab = get(f, "vocab_size", std.vocab)
	c.Dim = get(f, "hidden_size", std.dim)
	c.Hidden = get(f, "intermediate_size", std.hidden)
	c.Layers = get(f, "num_hidden_layers", std.layers)
	c.Heads = get(f, "num_attention_heads", std.heads)
	c.Context = get(f, "max_position_embeddings", std.context)
	c.NormEps = get(f, "rms_norm_eps", or(std.eps, 1e-6))
	c.AttentionDropout = optional(f, "attention_dropout", 0.0)
	c.KVHeads = or0(std.kvHeads, c.Heads)
	if nullKV {
		c.KVHeads = getNull(f, "num_key_value_heads", c.KVHeads, &c.Heads)
	} else {
		c.KVHeads = get(f, "num_key_value_heads", c.KVHeads)
	}
	c.HeadDim = optional(f, "head_dim", std.headDim)
	if c.HeadDim == 0 && c.Heads > 0 {
		if std.headDim != 0 || f.has("head_dim") {
			f.fail("head_dim", "%s, want a number of 1 or more", f.raw["head_dim"])
		}
		c.HeadDim = c.Dim / c.Heads
		if c.Dim%c.Heads != 0 {
			f.fail("hidden_size", "%d, want a multiple of num_attention_heads, which is %d, or a head_dim", c.Dim, c.Heads)
		}
	}
	if f.err == nil && (c.Layers < 1 || c.Layers > maxLayers) { // lists for each layer follow
		f.fail("num_hidden_layers", "%d, want 1 to %d", c.Layers, maxLayers)
	}
	if f.err == nil {
		c.Windows = make([]int, c.Layers)
	}
}

func or0(n, standard int) int {
	if n == 0 {
		return standard
	}
	return n
}

// readGate reads the activation of a gated MLP.
func (c *Config) readGate(f *fields, name, standard string) {
	c.Gated = true
	c.Activation = activation(f, name, standard)
}

func activation(f *fields, name, standard string) Activation {
	known := map[string]Activation{
		"silu": SiLU, "swish": SiLU, "gelu": GELU, "gelu_python": GELU,
		"gelu_pytorch_tanh": GELUTanh, "gelu_python_tanh": GELUTanh, "gelu_new": GELUTanh,
	}
	value := get(f, name, standard)
	act, found := known[value]
	if !found {
		f.fail(name, "%.40q, want one of %q", value, slices.Sorted(maps.Keys(known)))
	}
	return act
}

// readWindows sets the windows of layers by layer_types, or by the function sliding where
// the file does not have them.
func (c *Config) readWindows(f *fields, window int, sliding func(layer int) bool) {
	types := optional[[]string](f, "layer_types", nil)
	if f.err != nil {
		return
	}
	if types != nil && len(types) != c.Layers {
		f.fail("layer_types", "%d layers, and num_hidden_layers is %d", len(types), c.Layers)
		return
	}
	for i := range c.Windows {
		local := false
		switch {
		case types == nil:
			local = sliding(i)
		case types[i] == "sliding_attention":
			local = true
		case types[i] != "full_attention" && types[i] != "attention":
			f.fail("layer_types", "%.40q in layer %d, want full_attention or sliding_attention", types[i], i)
			return
		}
		if !local {
			continue
		}
		if window < 1 {
			f.fail("sliding_window", "layer %d has a window, and there is no sliding_window of 1 or more", i)
			return
		}
		c.Windows[i] = window
	}
}

func readLlama(f *fields, c *Config) {
	c.readSizes(f, true)
	c.readGate(f, "hidden_act", "silu")
	bias := get(f, "attention_bias", false)
	c.QKVBias, c.OutBias = bias, bias
	c.MLPBias = get(f, "mlp_bias", false)
	c.readRope(f)
}

func readMistral(f *fields, c *Config) {
	c.readSizes(f, true)
	c.readGate(f, "hidden_act", "silu")
	window := optional(f, "sliding_window", 4096)
	switch {
	case f.has("sliding_window") && window < 1:
		f.fail("sliding_window", "%d, want 1 or more", window)
	case f.err == nil:
		for i := range c.Windows {
			c.Windows[i] = window
		}
	}
	c.readRope(f)
}

func readQwen2(f *fields, c *Config) {
	c.readSizes(f, true)
	c.readQwen(f)
	c.QKVBias = true
}

func readQwen3(f *fields, c *Config) {
	c.readSizes(f, true)
	c.readQwen(f)
	bias := get(f, "attention_bias", false)
	c.QKVBias, c.OutBias = bias, bias
	c.QKNorm = true
}

func (c *Config) readQwen(f *fields) {
	c.readGate(f, "hidden_act", "silu")
	window := optional(f, "sliding_window", 4096)
	first := get(f, "max_window_layers", 28)
	if !get(f, "use_sliding_window", false) {
		window = 0
	}
	c.readWindows(f, window, func(i int) bool { return window != 0 && i >= first })
	c.readRope(f)
}

// readGemma reads what Gemma 2 and 3 share. Their file may also have hidden_act, which
// transformers does not look at.
func (c *Config) readGemma(f *fields) (window int) {
	c.readSizes(f, false)
	c.readGate(f, "hidden_activation", "gelu_pytorch_tanh")
	f.ignore("hidden_act")
	c.NormPlusOne, c.PostNorms = true, true
	bias := get(f, "attention_bias", false)
	c.QKVBias, c.OutBias = bias, bias
	scalar := get(f, "query_pre_attn_scalar", 256.0)
	if f.err == nil && !(scalar >= 1e-6 && scalar <= maxCount) {
		f.fail("query_pre_attn_scalar", "%v, want a number from 1e-6 to %d", scalar, maxCount)
	}
	c.ScoreScale = 1 / math.Sqrt(scalar)
	c.EmbeddingScale = math.Sqrt(float64(c.Dim))
	f.only("use_bidirectional_attention", "false")
	if f.has("sliding_window_size") && bytesOf(f, "sliding_window_size") == bytesOf(f, "sliding_window") {
		f.ignore("sliding_window_size") // of the first Gemma 2
	}
	return optional(f, "sliding_window", 4096)
}

func readGemma2(f *fields, c *Config) {
	window := c.readGemma(f)
	c.ScoreCap = c.readCap(f, "attn_logit_softcapping", 50)
	c.LogitCap = c.readCap(f, "final_logit_softcapping", 30)
	c.readWindows(f, window, func(i int) bool { return i%2 == 0 })
	c.readRope(f)
}

func readGemma3(f *fields, c *Config) {
	window := c.readGemma(f)
	c.QKNorm = true
	f.notRead("attn_logit_softcapping") // which its attention does not apply
	if c.Multimodal {                   // the class of the whole model has no cap, the class of the text has one
		f.notRead("final_logit_softcapping")
	} else {
		c.LogitCap = c.readCap(f, "final_logit_softcapping", 0)
	}
	pattern := get(f, "sliding_window_pattern", 6)
	if pattern < 1 {
		f.fail("sliding_window_pattern", "%d, want 1 or more", pattern)
		return
	}
	f.ignore("_sliding_window_pattern") // which transformers writes, and does not read
	c.readWindows(f, window, func(i int) bool { return (i+1)%pattern != 0 })
	c.readRopes(f)
}

// readCap reads a soft cap; null is none.
func (c *Config) readCap(f *fields, name string, standard float64) float64 {
	limit := optional(f, name, standard)
	if f.has(name) && !(limit > 0) {
		f.fail(name, "%v, want a positive number or null", limit)
	}
	return limit
}

func readGPT2(f *fields, c *Config) {
	std := f.std
	for name, other := range map[string]string{"n_embd": "hidden_size", "n_positions": "max_position_embeddings",
		"n_head": "num_attention_heads", "n_layer": "num_hidden_layers"} {
		f.alias(name, other)
	}
	c.Vocab = get(f, "vocab_size", std.vocab)
	c.Dim = get(f, "n_embd", std.dim)
	c.Layers = get(f, "n_layer", std.layers)
	c.Heads = get(f, "n_head", std.heads)
	c.Context = get(f, "n_positions", std.context)
	c.Hidden = optional(f, "n_inner", 0)
	if !f.has("n_inner") && c.Dim > 0 && c.Dim <= maxCount {
		c.Hidden = 4 * c.Dim
	}
	c.KVHeads = c.Heads
	c.LayerNorm, c.NormEps = true, get(f, "layer_norm_epsilon", 1e-5)
	c.QKVBias, c.OutBias, c.MLPBias, c.LearnedPositions = true, true, true, true
	c.Activation = activation(f, "activation_function", "gelu_new")
	c.ResidualDropout = get(f, "resid_pdrop", 0.1)
	c.EmbeddingDropout = get(f, "embd_pdrop", 0.1)
	c.AttentionDropout = get(f, "attn_pdrop", 0.1)
	f.only("scale_attn_by_inverse_layer_idx", "false")
	f.only("add_cross_attention", "false")
	scaled := get(f, "scale_attn_weights", true)
	switch {
	case f.err != nil:
	case c.Layers < 1 || c.Layers > maxLayers:
		f.fail("n_layer", "%d, want 1 to %d", c.Layers, maxLayers)
	case c.Heads < 1 || c.Dim < 1 || c.Dim%c.Heads != 0:
		f.fail("n_embd", "%d, want a multiple of n_head, which is %d", c.Dim, c.Heads)
	default:
		c.Windows = make([]int, c.Layers)
		c.HeadDim = c.Dim / c.Heads
		if !scaled {
			c.ScoreScale = 1
		}
	}
}
