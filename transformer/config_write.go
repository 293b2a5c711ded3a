package transformer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
)

// Write writes config.json into a folder. It makes a missing folder, and replaces an old file as a whole. transformers
// 4 and 5 read the file: it has rope_theta, rope_scaling and torch_dtype, and has rope_parameters only for a rope that
// these cannot describe. It has every field of the family, so that it does not depend on the defaults of a version.
// Ignored and Unread are not written.
//
// The error wraps [snug.ErrConfig] when c is not valid, when its family has no field for
// something (such as a cap of logits in llama), and when c is Multimodal, because that file also
// describes the part for images. Set Multimodal to false to write the text model alone.
func (c *Config) Write(dir string) error {
	text, err := c.encode()
	if err != nil {
		return fmt.Errorf("transformer: Write: %w", err)
	}
	if _, err := files.Make(dir); err != nil {
		return fmt.Errorf("transformer: Write: %w", err)
	}
	err = files.Replace(filepath.Join(dir, configName), func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if err != nil {
		return fmt.Errorf("transformer: Write: %w", err)
	}
	return nil
}

// encode returns the text of config.json. It reads the text again, and returns an error if a field differs: the family
// has no field for it.
func (c *Config) encode() ([]byte, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Family == Custom {
		return nil, bad("Family", "%q, which no config.json can say", Custom)
	}
	if c.Multimodal {
		return nil, bad("Multimodal", "true, want false: the file of the whole model also describes images")
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetIndent("", "  ")
	if err := enc.Encode(c.members()); err != nil {
		return nil, err
	}
	again, err := parseConfig(b.Bytes())
	if err != nil {
		return nil, err
	}
	if name := difference(*c, *again); name != "" {
		have, want := reflect.ValueOf(*again).FieldByName(name), reflect.ValueOf(*c).FieldByName(name)
		return nil, bad(name, "%.80s, and the family %q can only have %.80s", fmt.Sprint(want), c.Family, fmt.Sprint(have))
	}
	return b.Bytes(), nil
}

// difference returns the name of the first field in which two Configs differ. Scales that the file has in another form
// may differ by rounding.
func difference(a, b Config) string {
	if !slices.Contains(a.Experts.Dense, true) { // as the file says it
		a.Experts.Dense = nil
	}
	x, y := reflect.ValueOf(a), reflect.ValueOf(b)
	for i := range x.NumField() {
		name := x.Type().Field(i).Name
		switch name {
		case "Ignored", "Unread":
			continue
		case "ScoreScale":
			if math.Abs(a.ScoreScale-b.ScoreScale) <= 1e-12*a.ScoreScale {
				continue
			}
		case "EOS", "Windows":
			if fmt.Sprint(x.Field(i)) == fmt.Sprint(y.Field(i)) {
				continue
			}
		}
		if !reflect.DeepEqual(x.Field(i).Interface(), y.Field(i).Interface()) {
			return name
		}
	}
	return ""
}

// members returns the object of config.json.
func (c *Config) members() map[string]any {
	m := map[string]any{
		"model_type": c.Family, "architectures": []string{families[c.Family].class + "ForCausalLM"},
		"vocab_size": c.Vocab, "initializer_range": number(c.InitStd), "tie_word_embeddings": c.Tied,
		"bos_token_id": token(c.BOS), "eos_token_id": ends(c.EOS), "pad_token_id": token(c.Pad),
	}
	if name := map[snug.DType]string{snug.F32: "float32", snug.F16: "float16", snug.BF16: "bfloat16"}[c.DType]; name != "" {
		m["torch_dtype"] = name
	}
	if c.Family == "gpt2" {
		c.gpt2Members(m)
		return m
	}
	for key, value := range map[string]any{
		"hidden_size": c.Dim, "intermediate_size": c.Hidden, "num_hidden_layers": c.Layers, "num_attention_heads": c.Heads,
		"num_key_value_heads": c.KVHeads, "head_dim": c.HeadDim, "max_position_embeddings": c.Context,
		"rms_norm_eps": number(c.NormEps), "attention_dropout": number(c.AttentionDropout),
	} {
		m[key] = value
	}
	c.ropeMembers(m)
	activation := map[Activation]string{SiLU: "silu", GELU: "gelu", GELUTanh: "gelu_pytorch_tanh"}[c.Activation]
	switch c.Family {
	case "llama":
		m["hidden_act"], m["attention_bias"], m["mlp_bias"] = activation, c.QKVBias, c.MLPBias
	case "mistral":
		m["hidden_act"], m["sliding_window"] = activation, orNull(c.Windows[0])
	case "mixtral", "qwen3_moe", "gpt_oss":
		m["hidden_act"] = activation
		c.expertMembers(m)
	case "qwen2", "qwen3":
		m["hidden_act"] = activation
		window, first := c.window()
		m["use_sliding_window"], m["max_window_layers"] = window != 0, first
		m["sliding_window"], m["layer_types"] = orNull(window), c.layerTypes()
		if c.Family == "qwen3" {
			m["attention_bias"] = c.QKVBias
		}
	case "gemma2", "gemma3_text":
		m["hidden_activation"], m["attention_bias"] = activation, c.QKVBias
		window, _ := c.window()
		m["sliding_window"], m["layer_types"] = or0(window, 4096), c.layerTypes()
		m["query_pre_attn_scalar"] = scalar(c.ScoreScale)
		m["attn_logit_softcapping"], m["final_logit_softcapping"] = orNull(number(c.ScoreCap)), orNull(number(c.LogitCap))
	}
	return m
}

func (c *Config) gpt2Members(m map[string]any) {
	m["architectures"] = []string{"GPT2LMHeadModel"}
	for key, value := range map[string]any{
		"n_embd": c.Dim, "n_positions": c.Context, "n_ctx": c.Context, "n_head": c.Heads, "n_layer": c.Layers, "n_inner": c.Hidden,
		"layer_norm_epsilon": number(c.NormEps), "resid_pdrop": number(c.ResidualDropout), "embd_pdrop": number(c.EmbeddingDropout),
		"attn_pdrop": number(c.AttentionDropout), "scale_attn_weights": c.ScoreScale != 1 || c.HeadDim == 1,
		"activation_function": map[Activation]string{SiLU: "silu", GELU: "gelu", GELUTanh: "gelu_new"}[c.Activation],
	} {
		m[key] = value
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
	types := make([]string, c.Layers)
	for i, n := range c.Windows {
		types[i] = "full_attention"
		if n != 0 {
			types[i] = "sliding_attention"
		}
	}
	return types
}

// scalar returns s^-2, as an integer if it is one up to rounding.
func scalar(s float64) any {
	x := 1 / (s * s)
	if whole := math.Round(x); math.Abs(x-whole) < 1e-9*x && whole < maxCount {
		return int(whole)
	}
	return number(x)
}

// number is a float that is written with a decimal point, because transformers 5 distinguishes floats from integers.
type number float64

func (x number) MarshalJSON() ([]byte, error) {
	text, err := json.Marshal(float64(x))
	if err == nil && !bytes.ContainsAny(text, ".eE") {
		text = append(text, ".0"...)
	}
	return text, err
}

func token(id int) any {
	if id == -1 {
		return nil
	}
	return id
}

func ends(ids []int) any {
	switch len(ids) {
	case 0:
		return nil
	case 1:
		return ids[0]
	}
	return ids
}

func orNull[T int | number](x T) any {
	if x == 0 {
		return nil
	}
	return x
}

// ropeMembers adds the members of the ropes. Only transformers 5 can read a scaled rope of layers with a window.
func (c *Config) ropeMembers(m map[string]any) {
	two := c.Family == "gemma3_text"
	if two && c.LocalRope.Kind != RopeDefault {
		local, global := c.LocalRope.members(), c.Rope.members()
		local["rope_theta"], global["rope_theta"] = number(c.LocalRope.Theta), number(c.Rope.Theta)
		m["rope_parameters"] = map[string]any{"sliding_attention": local, "full_attention": global}
		return
	}
	if c.Family == "gpt_oss" && c.Rope.Kind == RopeDefault { // without a rope in the file it has a yarn
		m["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": number(c.Rope.Theta)}
		return
	}
	m["rope_theta"] = number(c.Rope.Theta)
	if two {
		m["rope_local_base_freq"] = number(c.LocalRope.Theta)
	}
	if c.Rope.Kind != RopeDefault {
		m["rope_scaling"] = c.Rope.members()
	}
}

// members returns the parameters of a kind, without the base.
func (r Rope) members() map[string]any {
	m := map[string]any{"rope_type": string(r.Kind)}
	for name, value := range map[string]float64{
		"factor": r.Factor, "low_freq_factor": r.LowFreqFactor,
		"high_freq_factor": r.HighFreqFactor, "beta_fast": r.BetaFast, "beta_slow": r.BetaSlow,
		"attention_factor": r.AttentionFactor, "mscale": r.MScale, "mscale_all_dim": r.MScaleAllDim,
	} {
		if value != 0 {
			m[name] = number(value)
		}
	}
	if r.OriginalPositions != 0 {
		m["original_max_position_embeddings"] = r.OriginalPositions
	}
	if r.NoTruncate {
		m["truncate"] = false
	}
	return m
}
