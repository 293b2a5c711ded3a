package transformer

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
)

// parseConfig reads a config.json, also with the words of Python for numbers that are not finite.
func parseConfig(text []byte) (*Config, error) {
	c := &Config{}
	f, err := newFields(strictjson.Python(text), "", c)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	c.Family = get(f, "model_type", "")
	if w := wholes[c.Family]; w != nil {
		if f, err = c.enterText(f, w); err != nil {
			return nil, err
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	fam := families[c.Family]
	if fam == nil || fam.fields == nil {
		return nil, bad("model_type", "%.40q, want one of %q", c.Family, append(familyNames(), slices.Sorted(maps.Keys(wholes))...))
	}
	f.std = fam.std
	if w := c.whole(); w != nil && w.text != "" && c.Family == w.texts[0] {
		f.std = w.std
	}
	if err := c.readCommon(f, fam); err != nil {
		return nil, err
	}
	slices.Sort(c.Ignored)
	slices.Sort(c.Unread)
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Floats = c.floatsOf(f.stored)
	return c, nil
}

// readCommon reads what all families have, and the family.
func (c *Config) readCommon(f *fields, fam *family) error {
	if err := c.readStored(f); err != nil {
		return err
	}
	c.readArchitecture(f, fam)
	c.readDType(f)
	c.InitStd = optional(f, "initializer_range", cmp.Or(f.std.deviation, 0.02))
	c.BOS = none(f, "bos_token_id", f.std.bos)
	c.Pad = none(f, "pad_token_id", f.std.pad)
	c.readEOS(f, f.std.eos)
	c.Tied = optional(f, "tie_word_embeddings", f.std.tied)
	f.only("is_causal", "true") // which the masks of all families read
	if !fam.ownLayers {
		f.only("per_layer_config", "{}")
	}
	f.only("pruned_heads", "{}") // of transformers 4
	c.readAutoMap(f, fam)
	c.ScoreScale, c.EmbeddingScale = math.NaN(), 1
	fam.fields(f, c)
	fam.layers(c)
	if f.err == nil && math.IsNaN(c.ScoreScale) {
		c.ScoreScale = 1 / math.Sqrt(float64(c.HeadDim))
	}
	if f.has("use_qk_norm") && !f.taken["use_qk_norm"] && c.QKNorm { // it cannot be switched off
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

// counts has the counts by the names of most families. nullKV is the number of heads for keys where the file has null,
// nil if null is an error.
func (c *Config) counts(f *fields, nullKV *int) {
	std := f.std
	field(f, "vocab_size", &c.Vocab, std.vocab)
	field(f, "hidden_size", &c.Dim, std.dim)
	field(f, "intermediate_size", &c.Hidden, std.hidden)
	field(f, "num_hidden_layers", &c.Layers, std.layers)
	field(f, "num_attention_heads", &c.Heads, std.heads)
	field(f, "max_position_embeddings", &c.Context, std.context)
	field(f, std.normName(), &c.NormEps, cmp.Or(std.eps, 1e-6))
	loose(f, "attention_dropout", &c.AttentionDropout, 0)
	if f.put("num_key_value_heads", c.KVHeads); f.out == nil {
		c.KVHeads = getNull(f, "num_key_value_heads", cmp.Or(std.kvHeads, c.Heads), nullKV)
	}
	loose(f, "head_dim", &c.HeadDim, std.headDim)
	if c.HeadDim == 0 && c.Heads > 0 {
		if std.headDim != 0 || f.has("head_dim") {
			f.fail("head_dim", "%s, want a number of 1 or more", f.raw["head_dim"])
		}
		c.HeadDim = c.Dim / c.Heads
		if c.Dim%c.Heads != 0 {
			f.fail("hidden_size", "%d, want a multiple of num_attention_heads, which is %d, or a head_dim", c.Dim, c.Heads)
		}
	}
	c.makeWindows(f, "num_hidden_layers")
}

// square refuses heads that are not together as wide as the model.
func (c *Config) square(f *fields) {
	if f.err == nil && c.Heads*c.HeadDim != c.Dim {
		f.fail("head_dim", "%d, want the width divided by the heads, which are %d and %d", c.HeadDim, c.Dim, c.Heads)
	}
}

// makeWindows makes the list of windows of the layers, whose number has the given name.
func (c *Config) makeWindows(f *fields, name string) {
	if f.err == nil && (c.Layers < 1 || c.Layers > maxLayers) {
		f.fail(name, "%d, want 1 to %d", c.Layers, maxLayers)
	}
	if f.err == nil && f.out == nil {
		c.Windows = make([]int, c.Layers)
	}
}

// bias has the biases of attention's projections.
func (c *Config) bias(f *fields, standard bool) {
	field(f, "attention_bias", &c.QKVBias, standard)
	c.OutBias = c.QKVBias
}

// activation has the activation of the MLP.
func (c *Config) activation(f *fields, name, standard string) {
	known := map[string]Activation{
		"silu": SiLU, "swish": SiLU, "gelu": GELU, "gelu_python": GELU,
		"gelu_fast": GELUTanh, "gelu_pytorch_tanh": GELUTanh, "gelu_python_tanh": GELUTanh, "gelu_new": GELUTanh, "relu2": ReLU2,
	}
	tanh := "gelu_pytorch_tanh"
	if known[standard] == GELUTanh {
		tanh = standard
	}
	value := map[Activation]string{SiLU: "silu", GELU: "gelu", GELUTanh: tanh, ReLU2: "relu2"}[c.Activation]
	field(f, name, &value, standard)
	act, found := known[value]
	if !found {
		f.fail(name, "%.40q, want one of %q", value, slices.Sorted(maps.Keys(known)))
	}
	c.Activation = act
}

// silu is activation for families in which it is also that behind a convolution of the layers in place of attention, which is SiLU here.
func (c *Config) silu(f *fields) {
	f.only("hidden_act", `"silu"`, `"swish"`)
	f.put("hidden_act", "silu")
	c.Activation = SiLU
}

// everyWindow has a window of all layers; 0 is none.
func (c *Config) everyWindow(f *fields, standard int) {
	window, _ := c.window()
	nullable(f, "sliding_window", &window, standard)
	if f.has("sliding_window") && window < 1 {
		f.fail("sliding_window", "%d, want 1 or more", window)
		return
	}
	if f.out == nil {
		for i := range c.Windows {
			c.Windows[i] = window
		}
	}
}

// windowsByType has the layers with a window in layer_types. The function sliding says which they are where the file does
// not have it.
func (c *Config) windowsByType(f *fields, window int, sliding func(layer int) bool) {
	types := c.layerTypes()
	loose(f, "layer_types", &types, nil)
	if f.err != nil || f.out != nil {
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

// window returns the window of the layers that have one, 0 for none, and the first such layer.
func (c *Config) window() (window, first int) {
	for i, n := range c.Windows {
		if n != 0 {
			return n, i
		}
	}
	return 0, c.Layers
}

func (c *Config) layerTypes() []string {
	types := make([]string, len(c.Windows))
	for i, n := range c.Windows {
		types[i] = "full_attention"
		if n != 0 {
			types[i] = "sliding_attention"
		}
	}
	return types
}

// routerLoss is the default of router_aux_loss_coef in all families.
const routerLoss = 0.001

// experts has what families with experts share. count is the name of their number, and hidden the width of one.
func (c *Config) experts(f *fields, count string, hidden int) {
	e := &c.Experts
	loss, on := cmp.Or(e.RouterLoss, routerLoss), e.RouterLoss != 0
	if f.put(count, e.Count); f.out == nil {
		*e = f.std.experts
		e.Hidden = hidden
		f.alias("num_local_experts", "num_experts")
		e.Count = get(f, "num_local_experts", e.Count)
	}
	field(f, "num_experts_per_tok", &e.Chosen, e.Chosen)
	field(f, "router_aux_loss_coef", &loss, routerLoss)
	field(f, "output_router_logits", &on, false)
	if on {
		e.RouterLoss = loss
	}
	if f.err == nil && e.Count < 1 {
		f.fail("num_local_experts", "%d, want 1 or more", e.Count)
	}
}
