package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// class is a tokenizer of transformers that consists of a vocabulary and merges.
type class struct {
	normalizer, split string
	prefixSpace       bool // whether the pre-tokenizer has the option
	standard          []SpecialToken
	models            string // model_types of the models that have it unless their tokenizer_config.json says another
}

const end = "<|endoftext|>"

// classes are the byte-level tokenizers that are built of vocab.json and merges.txt as transformers 5 builds them.
var classes = map[string]class{
	"GPT2Tokenizer": {
		split:       `{"type":"ByteLevel","add_prefix_space":%t,"trim_offsets":true,"use_regex":true}`,
		prefixSpace: true,
		standard:    []SpecialToken{{"bos_token", end}, {"eos_token", end}, {"unk_token", end}},
		models:      "gpt2 gpt_neo gptj opt starcoder2 phi",
	},
	"Qwen2Tokenizer": {
		normalizer: `{"type":"NFC"}`,
		split: `{"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":` +
			strconv.Quote(`(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`) +
			`},"behavior":"Isolated","invert":false},{"type":"ByteLevel","add_prefix_space":%t,"trim_offsets":true,"use_regex":false}]}`,
		standard: []SpecialToken{{"eos_token", end}, {"unk_token", end}, {"pad_token", end}},
		models:   "qwen2 qwen2_moe qwen3 qwen3_moe",
	},
}

func init() {
	for name, c := range classes {
		addClass(name, c.models)
	}
	addForm(form{order: 3, files: [][]string{{"vocab.json", "merges.txt"}}, open: openVocabulary, suits: func(folder string, f configFile) bool {
		_, known := classes[f.classOf(folder)]
		return known
	}})
}

// openVocabulary builds the tokenizer of vocab.json and merges.txt.
func openVocabulary(folder string, _ []string, c *Config, f configFile) (*Tokenizer, error) {
	made := classes[f.classOf(folder)]
	model, err := readVocabulary(folder)
	if err != nil {
		return nil, err
	}
	file := &file{Model: modelPart{model}}
	if made.normalizer != "" {
		file.Normalizer = json.RawMessage(made.normalizer)
	}
	file.PreTokenizer = fmt.Appendf(nil, made.split, isSet(f.PrefixSpace))
	file.Decoder = json.RawMessage(`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`)
	c.standard(made.standard, f, nil)
	if err := file.addTokens(folder, c, f, model.id, len(model.Vocab)); err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", folder, err)
	}
	t, err := file.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: vocab.json and merges.txt: %w", folder, err)
	}
	return t, nil
}

// ends adds the tokens that the configuration puts around texts.
func (t *Tokenizer) ends(c Config) error {
	around := template{{text: true}}
	for _, e := range []struct {
		set  *bool
		name string
		at   int
	}{{c.AddBOS, "bos_token", 0}, {c.AddEOS, "eos_token", 1}} {
		if !isSet(e.set) || c.token(e.name) == "" {
			continue
		}
		id, ok := t.ID(c.token(e.name))
		if !ok {
			return damaged("tokenizer: %s is %.100q, which the vocabulary lacks", e.name, c.token(e.name))
		}
		around = slices.Insert(around, min(e.at*len(around), len(around)), templatePart{ids: []int32{id}})
	}
	if len(around) > 1 {
		t.post = []postProcessor{around}
	}
	return nil
}

func (f *modelFile) id(token string) (uint32, bool) {
	id, ok := f.Vocab[token]
	return id, ok
}

// class returns the name of transformers' class.
func (f *configFile) class() string { return strings.TrimSuffix(f.Class, "Fast") }

// standard enters the tokens that a class has unless a file says otherwise: those that a tokenizer knows, or all for nil.
func (c *Config) standard(tokens []SpecialToken, f configFile, t *Tokenizer) {
	for _, s := range tokens {
		if t != nil {
			if _, known := t.ID(s.Text); !known {
				continue
			}
		}
		if !slices.ContainsFunc(f.named, func(n namedToken) bool { return n.name == s.Name }) {
			c.Special = append(c.Special, s)
		}
	}
	slices.SortStableFunc(c.Special, func(a, b SpecialToken) int { return place(a.Name) - place(b.Name) })
	c.BOS, c.EOS, c.Pad, c.Unknown = c.token("bos_token"), c.token("eos_token"), c.token("pad_token"), c.token("unk_token")
}

// classOf is class, or else what goes with the model of the folder.
func (f *configFile) classOf(folder string) string {
	if name := f.class(); name != "" && name != "PreTrainedTokenizer" && name != "TokenizersBackend" {
		return name
	}
	return modelClass(folder)
}

// modelClass returns the class that goes with the model's config.json.
func modelClass(folder string) string {
	data, err := readIf(filepath.Join(folder, "config.json"), files.Description)
	if err != nil || data == nil {
		return ""
	}
	var f struct {
		Class *string `json:"tokenizer_class"`
		Type  *string `json:"model_type"`
	}
	if err := json.Unmarshal(strictjson.Python(data), &f); err != nil {
		return ""
	}
	if name := strings.TrimSuffix(text(f.Class), "Fast"); name != "" {
		return name
	}
	return classOfModel[text(f.Type)]
}

// classOfModel are the classes of models by their model_type. The file of a class adds them.
var classOfModel = map[string]string{}

func addClass(name, models string) {
	for model := range strings.FieldsSeq(models) {
		classOfModel[model] = name
	}
}

// readVocabulary reads vocab.json and merges.txt.
func readVocabulary(folder string) (*modelFile, error) {
	f := &modelFile{Type: "BPE"}
	path := filepath.Join(folder, "vocab.json")
	data, err := readFile(path, files.Vocabulary)
	if err != nil {
		return nil, err
	}
	if err := options.Unmarshal(data, &f.Vocab); err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w: %w", path, err, snug.ErrCorrupt)
	}
	path = filepath.Join(folder, "merges.txt")
	if data, err = readFile(path, files.Vocabulary); err != nil {
		return nil, err
	}
	n := 0
	for line := range strings.Lines(string(data)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || strings.HasPrefix(line, "#version") {
			continue
		}
		a, b, ok := strings.Cut(line, " ")
		if !ok || a == "" || b == "" || strings.Contains(b, " ") {
			return nil, fmt.Errorf("tokenizer: %s: line %d: %.100q, want two tokens with a space between them: %w", path, n, line, snug.ErrCorrupt)
		}
		f.Merges = append(f.Merges, mergeFile{a: a, b: b, joined: true})
	}
	return f, nil
}

// addTokens enters the added tokens in the order in which transformers adds them: those of added_tokens_decoder, or else of
// added_tokens.json, by their ids, and then the special tokens that are not among them.
//
// known returns the ids of the n tokens of the model.
func (f *file) addTokens(folder string, c *Config, from configFile, known func(token string) (id uint32, ok bool), n int) error {
	special := map[string]bool{}
	for _, s := range c.Special {
		special[s.Text] = true
	}
	for _, e := range from.extra {
		if e.token != nil {
			special[e.token.Content] = true
		}
	}
	type numbered struct {
		id uint64
		tokenFile
	}
	var list []numbered
	for key, token := range from.Decoder {
		id, err := strconv.ParseUint(key, 10, 31)
		if err != nil {
			return fmt.Errorf("tokenizer_config.json: added_tokens_decoder has the id %.40q: %w", key, snug.ErrCorrupt)
		}
		list = append(list, numbered{id, token})
	}
	if from.Decoder == nil {
		var more map[string]uint32
		data, err := files.ReadInput(filepath.Join(folder, "added_tokens.json"), files.Description)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if data != nil {
			if err := strictjson.Unmarshal(data, &more); err != nil {
				return fmt.Errorf("added_tokens.json: %w: %w", err, snug.ErrCorrupt)
			}
		}
		for token, id := range more {
			list = append(list, numbered{uint64(id), tokenFile{Content: token, Special: special[token]}})
		}
	}
	slices.SortFunc(list, func(a, b numbered) int { return int(int64(a.id) - int64(b.id)) })
	seen := map[string]bool{}
	next := uint32(n)
	enter := func(t tokenFile, id int64) error {
		if t.Content == "" || seen[t.Content] {
			return nil
		}
		seen[t.Content] = true
		given, has := known(t.Content)
		if !has {
			given = next
			next++
		}
		if id >= 0 && uint32(id) != given {
			return fmt.Errorf("the added token %.100q has the id %d, and comes to %d after the tokens of the vocabulary: %w", t.Content, id, given, snug.ErrCorrupt)
		}
		isSpecial := t.Special || special[t.Content]
		normalized := !isSpecial
		if t.Normalized != nil {
			normalized = *t.Normalized
		}
		f.AddedTokens = append(f.AddedTokens, addedFile{ID: given, Content: t.Content, SingleWord: t.SingleWord, LStrip: t.LStrip, RStrip: t.RStrip, Normalized: normalized, Special: isSpecial})
		return nil
	}
	for _, t := range list {
		if err := enter(t.tokenFile, int64(t.id)); err != nil {
			return err
		}
	}
	var named []tokenFile
	for _, s := range c.Special {
		token := tokenFile{Content: s.Text, Special: true}
		for _, n := range from.named {
			if n.name == s.Name && n.token != nil {
				token = *n.token
				token.Special = true
			}
		}
		named = append(named, token)
	}
	for _, e := range from.extra {
		if e.token != nil {
			token := *e.token
			token.Special = true
			named = append(named, token)
		}
	}
	for _, t := range named {
		if err := enter(t, -1); err != nil {
			return err
		}
	}
	return nil
}
