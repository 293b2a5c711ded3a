package tokenizer

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// Config is what the files beside tokenizer.json say: tokenizer_config.json, special_tokens_map.json and the files of chat
// templates. Encode does not use it, and adds the special tokens that tokenizer.json says.
type Config struct {
	// ChatTemplate is the text of the default chat template, in Jinja2. It is empty for models without one. As in
	// transformers 5, chat_template.jinja comes first, and then nothing of the field chat_template of
	// tokenizer_config.json counts, which comes next. The last is chat_template.json, which transformers reads for
	// processors alone. In a folder with a processor, that of a model of images and text, what the processor reads comes
	// first: the field chat_template of processor_config.json, chat_template.json, then chat_template.jinja.
	ChatTemplate string
	// Templates are further templates by their names, such as "tool_use": the files of the folder
	// additional_chat_templates, or else those of a list in the field chat_template.
	Templates map[string]string
	// BOS, EOS, Pad and Unknown are the tokens for the beginning and the end of a text, for padding and for unknown
	// characters; empty where there is none. [Tokenizer.ID] returns their ids.
	BOS, EOS, Pad, Unknown string
	// Special are all special tokens that have a name, BOS and the like among them. Chat templates know them by these names:
	// all keys of tokenizer_config.json that end in _token, and those of an object extra_special_tokens, or else, as in
	// transformers 5, of an object model_specific_special_tokens. What is not said there comes from special_tokens_map.json;
	// transformers 5 reads that file only if tokenizer_config.json has no added_tokens_decoder, and its tokens then come
	// first, here too.
	Special []SpecialToken
	// AddBOS and AddEOS say whether the library transformers adds BOS and EOS to texts; nil if the file does not say.
	AddBOS, AddEOS *bool
}

// SpecialToken is a special token with its name, such as image_token.
type SpecialToken struct{ Name, Text string }

// standardTokens are the names that every tokenizer of transformers knows, in its order.
var standardTokens = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

// configFile has the keys of tokenizer_config.json that matter here, beside those of tokens. The others configure classes
// of transformers, and are passed over.
type configFile struct {
	Class        string               `json:"tokenizer_class"`
	ChatTemplate json.RawMessage      `json:"chat_template"`
	AddBOS       *bool                `json:"add_bos_token"`
	AddEOS       *bool                `json:"add_eos_token"`
	PrefixSpace  *bool                `json:"add_prefix_space"`
	Legacy       *bool                `json:"legacy"`
	Lower        *bool                `json:"do_lower_case"`
	Accents      *bool                `json:"strip_accents"`
	Ideographs   *bool                `json:"tokenize_chinese_chars"`
	Decoder      map[string]tokenFile `json:"added_tokens_decoder"`

	named []namedToken
	extra []namedToken // without names
}

// namedToken is a special token, or null, as a file has it.
type namedToken struct {
	name  string
	token *tokenFile // nil for null
}

// tokenFile is a token: a string, or an object with its content.
type tokenFile struct {
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized *bool  `json:"normalized"`
	Special    bool   `json:"special"`
}

func (t *tokenFile) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] == '{' {
		type plain tokenFile
		var object plain
		if err := (strictjson.Options{Open: true}).Unmarshal(data, &object); err != nil || object.Content == "" {
			return fmt.Errorf("%.100q, want a token with its content", data)
		}
		*t = tokenFile(object)
		return nil
	}
	if err := json.Unmarshal(data, &t.Content); err != nil {
		return fmt.Errorf("%.100q, want a token, an object or null", data)
	}
	return nil
}

// object is a JSON object with the order of its keys.
type object struct {
	keys   []string
	values map[string]json.RawMessage
}

func (o *object) read(data []byte) error {
	if err := strictjson.Unmarshal(data, &o.values); err != nil {
		return err
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		name, _ := key.(string)
		o.keys = append(o.keys, name)
		if err := dec.Decode(new(json.RawMessage)); err != nil {
			return err
		}
	}
	return nil
}

// specific is the field of names and tokens that transformers 5 writes for models with images or sounds.
const specific = "model_specific_special_tokens"

// maxSpecial is the most bytes of a special token. Chat templates write it in each turn.
const maxSpecial = 1 << 12

// tokens returns the special tokens of an object: those with a name, and those without one.
func (o *object) tokens() (named, extra []namedToken, err error) {
	one := func(list []namedToken, name string, raw json.RawMessage) ([]namedToken, error) {
		n := namedToken{name: name}
		if string(raw) != "null" {
			n.token = &tokenFile{}
			if err := json.Unmarshal(raw, n.token); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if len(n.token.Content) > maxSpecial {
				return nil, fmt.Errorf("%s: a token of %d bytes, want at most %d", name, len(n.token.Content), maxSpecial)
			}
		}
		return append(list, n), nil
	}
	for _, key := range o.keys {
		raw := o.values[key]
		switch standard := slices.Contains(standardTokens, key); {
		case strings.HasPrefix(key, "add_"): // add_bos_token is a switch
		case standard || strings.HasSuffix(key, "_token") && (raw[0] == '"' || raw[0] == '{'):
			named, err = one(named, key, raw)
		case !slices.Contains([]string{"extra_special_tokens", "additional_special_tokens", specific}, key):
		case key == specific && o.namesTokens(): // transformers then does not read the field
		case key == specific && raw[0] != '{' && string(raw) != "null":
			err = fmt.Errorf("%s: %.100q, want an object of names and tokens", key, raw)
		case raw[0] == '{':
			var inner object
			if err = inner.read(raw); err != nil {
				break
			}
			for _, name := range inner.keys {
				if named, err = one(named, name, inner.values[name]); err != nil {
					break
				}
			}
		case raw[0] == '[':
			var list []json.RawMessage
			if err = json.Unmarshal(raw, &list); err != nil {
				break
			}
			for _, item := range list {
				if extra, err = one(extra, key, item); err != nil {
					break
				}
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return named, extra, nil
}

// namesTokens reports whether an object has tokens of names that are not standard, besides the field of those.
func (o *object) namesTokens() bool {
	return slices.ContainsFunc(o.keys, func(key string) bool {
		first := o.values[key][0]
		return key == "extra_special_tokens" && first == '{' ||
			strings.HasSuffix(key, "_token") && first == '"' && !slices.Contains(standardTokens, key)
	})
}

// readConfig reads the files of a folder that are there.
func readConfig(folder string) (c Config, f configFile, err error) {
	if f, err = readConfigFile(folder); err != nil {
		return Config{}, f, err
	}
	c = f.config()
	return c, f, c.readTemplates(folder, f.ChatTemplate)
}

// config returns what the files say without the chat templates.
func (f *configFile) config() Config {
	c := Config{AddBOS: f.AddBOS, AddEOS: f.AddEOS}
	for _, n := range f.named {
		if n.token == nil || n.token.Content == "" {
			continue
		}
		c.Special = append(c.Special, SpecialToken{n.name, n.token.Content})
	}
	c.BOS, c.EOS, c.Pad, c.Unknown = c.token("bos_token"), c.token("eos_token"), c.token("pad_token"), c.token("unk_token")
	return c
}

// token returns the special token of a name.
func (c *Config) token(name string) string {
	for _, s := range c.Special {
		if s.Name == name {
			return s.Text
		}
	}
	return ""
}

// readConfigFile reads tokenizer_config.json and special_tokens_map.json.
func readConfigFile(folder string) (f configFile, err error) {
	for _, name := range []string{"tokenizer_config.json", "special_tokens_map.json"} {
		data, err := readIf(filepath.Join(folder, name), files.Description)
		if err != nil {
			return f, err
		}
		if data == nil {
			continue
		}
		if err := f.merge(data, name == "special_tokens_map.json"); err != nil {
			return f, fmt.Errorf("tokenizer: %s: %w: %w", filepath.Join(folder, name), err, snug.ErrCorrupt)
		}
	}
	f.sort()
	return f, nil
}

// sort puts the tokens in transformers' order.
func (f *configFile) sort() {
	slices.SortStableFunc(f.named, func(a, b namedToken) int { return place(a.name) - place(b.name) })
}

// place is the place of a name in transformers' order.
func place(name string) int {
	if i := slices.Index(standardTokens, name); i >= 0 {
		return i
	}
	return len(standardTokens)
}

// merge takes what a file says: tokenizer_config.json, or else special_tokens_map.json, which follows it.
func (f *configFile) merge(data []byte, isMap bool) error {
	var o object
	if err := o.read(data); err != nil {
		return err
	}
	if !isMap {
		if err := (strictjson.Options{Open: true}).Unmarshal(data, f); err != nil {
			return err
		}
	}
	named, extra, err := o.tokens()
	if err != nil {
		return err
	}
	f.extra = append(f.extra, extra...)
	for _, n := range named {
		i := slices.IndexFunc(f.named, func(m namedToken) bool { return m.name == n.name })
		switch {
		case i < 0:
			f.named = append(f.named, n)
		case f.Decoder == nil && n.token != nil: // as transformers does it
			f.named[i] = n
		}
	}
	return nil
}
