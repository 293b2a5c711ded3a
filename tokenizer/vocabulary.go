package tokenizer

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
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

// others are the files that hold a tokenizer in forms that are not read here.
var others = []string{"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json", "vocab.txt", "qwen.tiktoken", "tiktoken.model", "vocab.json"}

// convert is the command that writes tokenizer.json of the other files of a folder.
func convert(folder string) string {
	return fmt.Sprintf(`pip install transformers sentencepiece tiktoken protobuf && python -c 'from transformers import AutoTokenizer; import sys; AutoTokenizer.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])' '%s'`, strings.ReplaceAll(folder, "'", `'\''`))
}

// openVocabulary builds the tokenizer of a folder without tokenizer.json.
func openVocabulary(folder string, c *Config, f configFile) (*Tokenizer, error) {
	has := func(name string) bool {
		_, err := os.Stat(filepath.Join(folder, name))
		return err == nil
	}
	name := f.class()
	if name == "" || name == "PreTrainedTokenizer" || name == "TokenizersBackend" {
		name = modelClass(folder)
	}
	made, known := classes[name]
	if !has("vocab.json") || !has("merges.txt") || !known {
		for _, other := range others {
			if has(other) {
				what := ""
				if other == "vocab.json" && name != "" {
					what = fmt.Sprintf(", of the class %.60s", name)
				}
				return nil, fmt.Errorf("tokenizer: %s has no tokenizer.json, and %s%s is not read: write tokenizer.json by: %s: %w", folder, other, what, convert(folder), snug.ErrConfig)
			}
		}
		return nil, fmt.Errorf("tokenizer: %s has no tokenizer.json: download it with the model: %w: %w", folder, snug.ErrConfig, fs.ErrNotExist)
	}
	file, err := readVocabulary(folder)
	if err != nil {
		return nil, err
	}
	if made.normalizer != "" {
		file.Normalizer = json.RawMessage(made.normalizer)
	}
	file.PreTokenizer = fmt.Appendf(nil, made.split, isSet(f.PrefixSpace))
	file.Decoder = json.RawMessage(`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`)
	c.standard(made.standard, f, nil)
	if err := file.addTokens(folder, c, f); err != nil {
		return nil, err
	}
	t, err := file.build()
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: vocab.json and merges.txt: %w", folder, err)
	}
	return t, t.ends(*c)
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
	if err := json.Unmarshal(data, &f); err != nil {
		return ""
	}
	if name := strings.TrimSuffix(text(f.Class), "Fast"); name != "" {
		return name
	}
	for name, c := range classes {
		if slices.Contains(strings.Fields(c.models), text(f.Type)) {
			return name
		}
	}
	return ""
}

// readVocabulary reads vocab.json and merges.txt.
func readVocabulary(folder string) (*file, error) {
	f := &file{Model: modelFile{Type: "BPE"}}
	path := filepath.Join(folder, "vocab.json")
	data, err := readFile(path, files.Vocabulary)
	if err != nil {
		return nil, err
	}
	if err := options.Unmarshal(data, &f.Model.Vocab); err != nil {
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
		f.Model.Merges = append(f.Model.Merges, mergeFile{a: a, b: b, joined: true})
	}
	return f, nil
}

// addTokens enters the added tokens in the order in which transformers adds them: those of added_tokens_decoder, or else of
// added_tokens.json, by their ids, and then the special tokens that are not among them.
func (f *file) addTokens(folder string, c *Config, from configFile) error {
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
			return fmt.Errorf("tokenizer: tokenizer_config.json: added_tokens_decoder has the id %.40q: %w", key, snug.ErrCorrupt)
		}
		list = append(list, numbered{id, token})
	}
	if from.Decoder == nil {
		var more map[string]uint32
		path := filepath.Join(folder, "added_tokens.json")
		data, err := readIf(path, files.Description)
		if err != nil {
			return err
		}
		if data != nil {
			if err := strictjson.Unmarshal(data, &more); err != nil {
				return fmt.Errorf("tokenizer: %s: %w: %w", path, err, snug.ErrCorrupt)
			}
		}
		for token, id := range more {
			list = append(list, numbered{uint64(id), tokenFile{Content: token, Special: special[token]}})
		}
	}
	slices.SortFunc(list, func(a, b numbered) int { return int(int64(a.id) - int64(b.id)) })
	seen := map[string]bool{}
	next := uint32(len(f.Model.Vocab))
	enter := func(t tokenFile, id int64) error {
		if t.Content == "" || seen[t.Content] {
			return nil
		}
		seen[t.Content] = true
		given, known := f.Model.Vocab[t.Content]
		if !known {
			given = next
			next++
		}
		if id >= 0 && uint32(id) != given {
			return fmt.Errorf("tokenizer: %s: the added token %.100q has the id %d, and comes to %d after the tokens of vocab.json: %w", folder, t.Content, id, given, snug.ErrCorrupt)
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
