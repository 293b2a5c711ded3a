package transformer

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/snug-ml/snug/internal/strictjson"
)

// This file decides which class of transformers a config.json is for: a model for text or for images and text, with which
// head, and with its own code or transformers'.

// architecture returns the name of transformers' class.
func (f *family) architecture() string { return f.class + cmp.Or(f.head, "ForCausalLM") }

// readArchitecture returns an error for models with a head other than ForCausalLM's. transformers chooses the class by
// model_type, so that other spellings of the name, such as LLaMAForCausalLM, are the same model.
func (c *Config) readArchitecture(f *fields, fam *family) {
	const field = "architectures"
	known := []string{fam.architecture(), fam.class + "Model", fam.class + "TextModel"}
	if w := c.whole(); w != nil {
		known = append(known, w.class+"ForConditionalGeneration", w.class+"Model")
	}
	var names []string
	if bytesOf(f, field) == "" || bytesOf(f, field)[0] != '"' {
		names = optional[[]string](f, field, nil)
	} else {
		names = []string{get(f, field, "")}
	}
	for _, name := range names {
		lower := strings.ToLower(name)
		switch {
		case slices.Contains(known, name):
		case strings.HasSuffix(lower, "forcausallm"), strings.HasSuffix(lower, "lmheadmodel"),
			slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, name) }):
			f.notRead(field)
			return
		default:
			f.fail(field, "%.60q, want one of %q: other models have other heads", name, known)
		}
	}
}

// readAutoMap returns an error for a folder with a model of its own code, which may compute something else. Folders of
// transformers' own classes, and of tokenizers, may have an auto_map, too.
func (c *Config) readAutoMap(f *fields, fam *family) {
	const field = "auto_map"
	class := fam.class
	if w := c.whole(); w != nil {
		class = w.class
	}
	if !f.has(field) {
		f.ignore(field)
		return
	}
	own := []string{class + "Config", class + "TextConfig", class + "Model", class + "TextModel", class + "PreTrainedModel", class + "ForCausalLM",
		class + "LMHeadModel", class + "ForConditionalGeneration", class + "ForSequenceClassification", class + "ForTokenClassification",
		class + "ForQuestionAnswering"}
	var classes map[string]json.RawMessage
	if err := strictjson.Unmarshal(f.raw[field], &classes); err != nil {
		f.fail(field, "%s", plain(err))
		return
	}
	for _, auto := range slices.Sorted(maps.Keys(classes)) {
		name := strings.Trim(compact(classes[auto]), `"`)
		if strings.HasPrefix(auto, "AutoTokenizer") || strings.HasSuffix(auto, "Processor") || isNull(classes[auto]) {
			continue
		}
		if !slices.ContainsFunc(own, func(o string) bool { return strings.EqualFold(o, name[strings.LastIndexByte(name, '.')+1:]) }) {
			f.fail(field, "%s is %.100q, a class of the folder's own code, which may compute something else than %s of transformers", auto, name, c.Family)
		}
	}
	f.notRead(field)
}

// moveText moves the fields of the text to an object of their own.
func (w *whole) moveText(f, text *fields) {
	text.path = ""
	for name, raw := range f.raw {
		if name != "model_type" && !slices.Contains(w.fields, name) {
			text.raw[name], f.taken[name] = raw, true
		}
	}
}

// enterText returns the text_config of a multimodal model, with the fields of the outer object that apply to the text.
func (c *Config) enterText(f *fields, w *whole) (*fields, error) {
	c.Family, c.Whole = w.texts[0], w.name
	text := f.object("text_config")
	if f.err != nil {
		return nil, f.err
	}
	if text == nil && w.strict {
		f.fail("text_config", "it is not there, want the fields of the text")
		return nil, f.err
	}
	if text == nil {
		text = &fields{path: "text_config.", raw: map[string]json.RawMessage{}, taken: map[string]bool{}, ignored: &c.Ignored, unread: &c.Unread}
		if w.flat {
			w.moveText(f, text)
		}
	}
	known := w.texts
	if w.text != "" {
		known = append([]string{w.text}, w.texts[1:]...)
	}
	switch name := get(text, "model_type", known[0]); {
	case !slices.Contains(known, name):
		text.fail("model_type", "%.40q, want one of %q", name, known)
	case name != w.text:
		c.Family = name
	}
	for _, name := range []string{"eos_token_id", "bos_token_id", "pad_token_id"} { // the outer object overrides text_config
		if raw, found := f.raw[name]; found {
			text.raw[name], f.taken[name] = raw, true
		}
	}
	for _, name := range []string{"dtype", "torch_dtype", "tie_word_embeddings", "architectures", "auto_map", "quantization_config"} {
		raw, found := f.raw[name]
		f.taken[name] = true
		if !found {
			continue
		}
		if own, both := text.raw[name]; both && (name == "tie_word_embeddings" || name == "quantization_config") && compact(own) != compact(raw) {
			text.fail(name, "%.40s, and %s of the whole model is %.40s: want the same value", own, name, raw)
		}
		text.raw[name] = raw
	}
	if bytesOf(text, "tie_word_embeddings") == "false" && bytesOf(f, "tie_word_embeddings") == "" {
		text.fail("tie_word_embeddings", "false, and the whole model does not say it: versions of transformers take it for different models")
	}
	err := f.rest(w.fields...)
	return text, errors.Join(err, text.err)
}
