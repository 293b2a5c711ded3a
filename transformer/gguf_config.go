package transformer

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/qlora"
)

// This file reads the Config of a file of llama.cpp's from its metadata and the names of its tensors. The Config is the one that a
// config.json with the same numbers would give, and what the file says is compared with what a file of that Config would say.

// readGGUFConfig is ReadConfig for a file of llama.cpp's.
func readGGUFConfig(path string) (c *Config, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closing := f.Close(); err == nil {
			err = closing
		}
	}()
	if c, _, err = configOfGGUF(f); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ggufReader reads the metadata of an architecture.
type ggufReader struct {
	file    *gguf.File
	arch    string
	form    *ggufForm
	tensors map[string]gguf.Tensor
	fields  map[string]any // of config.json
	err     error
}

func (r *ggufReader) fail(key, format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%s: %w", key, fmt.Errorf(format+": %w", append(args, snug.ErrConfig)...))
	}
}

// number returns the value of a key of the architecture.
func (r *ggufReader) number(key string) (x float64, found bool) {
	key = r.arch + "." + key
	v, found := r.file.Value(key)
	if !found {
		return 0, false
	}
	if x, found = ggufNumber(v); !found {
		r.fail(key, "it is a %T, want a number", v)
	}
	return x, found
}

// ggufNumber returns a value that is a number.
func ggufNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case uint8:
		return float64(v), true
	case int8:
		return float64(v), true
	case uint16:
		return float64(v), true
	case int16:
		return float64(v), true
	case uint32:
		return float64(v), true
	case int32:
		return float64(v), true
	case uint64:
		return float64(v), true
	case int64:
		return float64(v), true
	case float32: // as its decimal is meant: 1e-5, not the nearest float32
		x, err := strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64)
		return x, err == nil
	case float64:
		return v, true
	}
	return 0, false
}

// take sets a field of config.json from a key, and reports whether the file has it.
func (r *ggufReader) take(field, key string) bool {
	x, found := r.number(key)
	if !found {
		return false
	}
	if x-x != 0 {
		r.fail(r.arch+"."+key, "%v, want a finite number", x)
		return false
	}
	format := byte('g')
	if x == math.Trunc(x) && math.Abs(x) < 1<<53 { // a count is written as one
		format = 'f'
	}
	r.fields[field] = json.Number(strconv.FormatFloat(x, format, -1, 64))
	return true
}

// count is take of a key that must be there, and counts.
func (r *ggufReader) count(field, key string) int {
	x, found := r.number(key)
	switch {
	case !found:
		r.fail(r.arch+"."+key, "the file does not say it")
	case x != math.Trunc(x) || x < 1 || x > maxCount:
		r.fail(r.arch+"."+key, "%v, want a whole number from 1 to %d", x, maxCount)
	default:
		r.fields[field] = int(x)
		return int(x)
	}
	return 1
}

func (r *ggufReader) has(tensor string) bool { _, found := r.tensors[tensor]; return found }

// configOfGGUF returns the Config of a file, and how its tensors hold the parameters.
func configOfGGUF(f *gguf.File) (*Config, *GGUF, error) {
	r := &ggufReader{file: f, tensors: map[string]gguf.Tensor{}, fields: map[string]any{}}
	for _, t := range f.Tensors() {
		r.tensors[t.Name] = t
	}
	v, _ := f.Value("general.architecture")
	r.arch, _ = v.(string)
	if kind, found := f.Value("general.type"); found && kind != "model" {
		return nil, nil, fmt.Errorf("general.type is %.40q, want a model: %w", kind, snug.ErrConfig)
	}
	family, err := r.family()
	if err != nil {
		return nil, nil, err
	}
	r.form = &family.gguf
	r.common(family)
	r.rope()
	base, share := family.std.ropeNames()
	for to, from := range map[string]string{base: "rope_theta", share: "partial_rotary_factor"} {
		if x, found := r.fields[from]; found {
			r.fields[to] = x
		}
	}
	r.special()
	if r.err != nil {
		return nil, nil, r.err
	}
	text, err := json.Marshal(r.fields)
	if err != nil {
		return nil, nil, err
	}
	c, err := parseConfig(text)
	if err != nil {
		return nil, nil, err
	}
	c.Ignored, c.Unread = nil, nil
	form, err := c.compareGGUF(r)
	if err != nil {
		return nil, nil, err
	}
	return c, form, nil
}

// family returns the family of the architecture.
func (r *ggufReader) family() (*family, error) {
	experts, _ := r.number("expert_count")
	var known []string
	var best *family
	for _, name := range slices.Sorted(maps.Keys(families)) {
		f := families[name]
		if f.gguf.arch == "" {
			continue
		}
		known = append(known, f.gguf.arch)
		if f.gguf.arch == r.arch && (f.std.experts.Count > 0) == (experts > 0) && (best == nil || name == r.arch) {
			best = f
		}
	}
	if best == nil {
		with := ""
		if slices.Contains(known, r.arch) {
			with = fmt.Sprintf(" with %v experts", experts)
		}
		return nil, fmt.Errorf("general.architecture is %.40q%s, want one of %q: %w", r.arch, with, slices.Compact(known), snug.ErrConfig)
	}
	return best, nil
}

// common sets the fields that families share. Those that a family does not read change nothing.
func (r *ggufReader) common(f *family) {
	r.fields["model_type"] = f.name
	table, found := r.tensors["token_embd.weight"]
	if !found || len(table.Shape) != 2 {
		r.fail("token_embd.weight", "it is of %v elements, want the matrix of the embedding", table.Shape)
		return
	}
	r.fields["vocab_size"] = table.Shape[0]
	layers := r.count("num_hidden_layers", "block_count")
	dim := r.count("hidden_size", "embedding_length")
	heads := r.count("num_attention_heads", "attention.head_count")
	hidden := r.count("intermediate_size", "feed_forward_length")
	r.fields["n_inner"] = hidden
	r.count("max_position_embeddings", "context_length")
	if !r.take("num_key_value_heads", "attention.head_count_kv") {
		r.fields["num_key_value_heads"] = heads
	}
	if !r.take("head_dim", "attention.key_length") {
		r.fields["head_dim"] = max(1, dim/heads)
	}
	width, _ := r.number("attention.key_length")
	if width == 0 {
		width = float64(dim / heads)
	}
	switch x, found := r.number("rope.dimension_count"); {
	case found && f.gguf.turned && x == math.Trunc(x) && x > 0 && x <= width:
		r.fields["partial_rotary_factor"] = turnedShare(int(x), int(width))
	case f.gguf.turned && !found:
		r.fields["partial_rotary_factor"] = 1 // which llama.cpp takes then
	case found && x != width:
		r.fail(r.arch+".rope.dimension_count", "%v, want all %v elements of a head", x, width)
	}
	if w := f.gguf.headWidth; w != nil {
		r.fields["query_pre_attn_scalar"] = w(&Config{Layers: layers, Dim: dim, Heads: heads, HeadDim: int(width)})
	}
	r.take(f.std.normName(), "attention.layer_norm_rms_epsilon")
	r.take(f.std.normName(), "attention.layer_norm_epsilon")
	r.fields["tie_word_embeddings"] = !r.has("output.weight")
	r.fields["attention_bias"] = r.has("blk.0.attn_q.bias") || r.has("blk.0.attn_qkv.bias")
	if r.form.parallel != nil {
		r.fields["use_parallel_residual"] = r.form.parallel(r)
	}
	r.fields["use_bias"], r.fields["use_qkv_bias"] = r.has("blk.0.attn_q.bias"), r.has("blk.0.attn_q.bias")
	r.fields["attention_out_bias"] = r.has("blk.0.attn_output.bias")
	r.fields["mlp_bias"] = r.has("blk.0.ffn_up.bias")
	if !r.take("sliding_window", "attention.sliding_window") || r.fields["sliding_window"] == json.Number("0") {
		r.fields["sliding_window"] = nil
	}
	for field, key := range map[string]string{
		"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
		"num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
		"num_experts": "expert_count", "num_local_experts": "expert_count", "rope_local_base_freq": "rope.freq_base_swa",
	} {
		r.take(field, key)
	}
	r.fields["use_qk_norm"] = r.has("blk.0.attn_q_norm.weight")
	if f.gguf.logitScale && !r.take("logit_scale", "logit_scale") {
		r.fail(r.arch+".logit_scale", "the file does not say it")
	}
	if f.gguf.scales {
		for field, key := range map[string]string{"attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
			"residual_multiplier": "residual_scale", "logits_scaling": "logit_scale"} {
			if !r.take(field, key) {
				r.fail(r.arch+"."+key, "the file does not say it")
			}
		}
	}
	for _, field := range []string{"attn_logit_softcapping", "final_logit_softcapping"} {
		if r.fields[field] == json.Number("0") { // no cap
			r.fields[field] = nil
		}
	}
	if v, _ := r.file.Value(r.arch + ".attention.causal"); v == false {
		r.fail(r.arch+".attention.causal", "false, and tokens see those before them alone")
	}
	r.fields["norm_topk_prob"] = f.gguf.normalizedExperts
	types := map[gguf.Type]string{gguf.F32: "float32", gguf.F16: "float16"}
	matrix := r.tensors["blk.0.ffn_up.weight"]
	if r.fields["dtype"] = types[matrix.Type]; r.fields["dtype"] == "" || len(matrix.Shape) == 0 {
		r.fields["dtype"] = "bfloat16"
	}
}

// special sets the tokens that begin and end texts.
func (r *ggufReader) special() {
	id := func(key string) any {
		v, _ := r.file.Value("tokenizer.ggml." + key)
		if x, is := ggufNumber(v); is && x == math.Trunc(x) && x >= 0 && x <= math.MaxInt32 {
			return int(x)
		}
		return nil
	}
	r.fields["bos_token_id"], r.fields["pad_token_id"] = id("bos_token_id"), id("padding_token_id")
	ends := []any{}
	for _, key := range []string{"eos_token_id", "eot_token_id", "eom_token_id"} {
		if end := id(key); end != nil && !slices.Contains(ends, end) {
			ends = append(ends, end)
		}
	}
	r.fields["eos_token_id"] = ends
}

// compareGGUF returns an error unless the metadata and the tensors of a file are those of the model, and sets Stored and Floats.
func (c *Config) compareGGUF(r *ggufReader) (*GGUF, error) {
	g, err := c.describe("f32")
	if err != nil {
		return nil, err
	}
	if err := r.compareMetadata(g.Metadata); err != nil {
		return nil, err
	}
	if err := c.comparePattern(r); err != nil {
		return nil, err
	}
	var missing, extra, shapes, types []string
	var stored, bytes float64 // elements in blocks, and what they take
	known, matrices := map[string]bool{}, map[string]bool{}
	for _, t := range c.tensors(c.layout()) {
		matrices[t.Name] = c.isMatrix(t)
	}
	for i := range g.Tensors {
		want := &g.Tensors[i]
		known[want.Name] = true
		have, found := r.tensors[want.Name]
		if !found {
			missing = append(missing, want.Name)
			continue
		}
		if !slices.Equal(have.Shape, want.Shape) {
			shapes = append(shapes, fmt.Sprintf("%s is %v, want %v", want.Name, have.Shape, want.Shape))
		}
		if !readableGGUF(have.Type) {
			types = append(types, fmt.Sprintf("%s is %s", have.Name, have.Type))
		}
		want.Type = have.Type
		for _, param := range g.parts[i].params {
			if !matrices[param] {
				continue
			}
			if blocks, _ := have.Type.Block(); blocks > 1 {
				c.Stored = qlora.GGUF
			} else {
				c.Floats = append(c.Floats, param)
				continue
			}
			n := g.parts[i].rows * g.parts[i].cols
			if size, err := have.Type.Bytes(n); err == nil {
				stored, bytes = stored+float64(n), bytes+float64(size)
			}
		}
	}
	if c.Stored == 0 {
		c.Floats = nil
	} else {
		c.StoredBits = 8 * bytes / stored
	}
	for _, t := range r.file.Tensors() {
		if !known[t.Name] {
			extra = append(extra, t.Name)
		}
	}
	return g, differences(missing, extra, shapes, types)
}

// readableGGUF reports whether the elements of a type can be decoded.
func readableGGUF(t gguf.Type) bool {
	elements, bytes := t.Block()
	return bytes > 0 && t.Decode(make([]float32, elements), make([]byte, bytes)) == nil
}

// comparePattern returns an error unless the layers with a window are those that a file names.
func (c *Config) comparePattern(r *ggufReader) error {
	key := r.arch + ".attention.sliding_window_pattern"
	v, found := r.file.Value(key)
	if !found {
		return nil
	}
	slides := make([]bool, c.Layers)
	for i, n := range c.Windows {
		slides[i] = n != 0
	}
	if list, is := v.([]bool); is && slices.Equal(list, slides) {
		return nil
	}
	if x, is := ggufNumber(v); is && x == float64(r.form.period) {
		return nil
	}
	return fmt.Errorf("%s is %s, and the layers with a window are others: %w", key, shortValue(v), snug.ErrConfig)
}

// compareMetadata returns an error unless the numbers of the architecture in a file are those that the model has, so that nothing in it
// goes unseen that llama.cpp would compute with.
func (r *ggufReader) compareMetadata(want []gguf.Pair) error {
	said := map[string]any{}
	for _, p := range want {
		said[p.Key] = p.Value
	}
	for _, p := range r.file.Metadata() {
		key, own := strings.CutPrefix(p.Key, r.arch+".")
		value, known := said[p.Key]
		x, number := ggufNumber(p.Value)
		y, _ := ggufNumber(value)
		switch {
		case !own || r.form.unread(key):
		case key == "use_parallel_residual" && r.form.parallel != nil && r.form.parallelByNames: // which llama.cpp does not read
		case known && number && math.Abs(x-y) <= 1e-6*max(math.Abs(x), math.Abs(y)), known && p.Value == value:
		case known:
			return fmt.Errorf("%s is %s, and the model that the other numbers describe has %v: %w", p.Key, shortValue(p.Value), value, snug.ErrConfig)
		case number && x == 0, p.Value == false, p.Value == "none": // which switch something off
		default:
			return fmt.Errorf("%s is %s, which is not known: %w", p.Key, shortValue(p.Value), snug.ErrConfig)
		}
	}
	for key := range said {
		if _, found := r.file.Value(key); !found && strings.HasSuffix(key, "_epsilon") {
			return fmt.Errorf("%s: the file does not say it: %w", key, snug.ErrConfig)
		}
	}
	return nil
}

// shortValue returns the text of a value of metadata, or its beginning.
func shortValue(v any) string {
	text := fmt.Sprint(v)
	if len(text) > 60 {
		text = strings.ToValidUTF8(text[:60], "") + "…"
	}
	quoted := strconv.QuoteToGraphic(text)
	return quoted[1 : len(quoted)-1]
}

// unread reports whether a key does not change what llama.cpp computes, or is compared elsewhere.
func (f *ggufForm) unread(key string) bool {
	switch key {
	case "vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "rope.dimension_count", "rope.freq_base", "attention.causal",
		"rope.scaling.original_context_length", "rope.scaling.factor", "rope.scaling.attn_factor", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
		"rope.scaling.type", "attention.sliding_window_pattern":
		return true
	}
	return false
}
