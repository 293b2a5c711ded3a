package tokenizer

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/internal/files"
)

// tiktokenClass is a tokenizer that has its tokens in a file of the library tiktoken: a token in base64 and its rank in each line.
type tiktokenClass struct {
	pattern, normalizer string
	special             func() []string // behind the tokens of the file
	standard            []SpecialToken
}

// tiktokenWords begins the patterns of the tokenizers that follow GPT-4's.
const tiktokenWords = `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|`

// tiktokenClasses are the tokenizers by the classes of transformers. With no class, special tokens are those of tokenizer_config.json.
var tiktokenClasses = map[string]tiktokenClass{
	"": {pattern: tiktokenWords + `\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`},
	"QWenTokenizer": {
		pattern:    tiktokenWords + `\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`,
		normalizer: `{"type":"NFC"}`,
		special: func() []string {
			all := []string{end, "<|im_start|>", "<|im_end|>"}
			for i := range 205 {
				all = append(all, fmt.Sprintf("<|extra_%d|>", i))
			}
			return all
		},
		standard: []SpecialToken{{"eos_token", end}, {"pad_token", end}},
	},
}

func init() {
	addForm(form{order: 5, files: [][]string{{"qwen.tiktoken"}, {"tiktoken.model"}}, open: openTiktoken, suits: func(_ string, f configFile) bool {
		_, known := tiktokenClasses[f.tiktokenClass()]
		return known
	}})
}

// tiktokenClass is class, without the names that say nothing about the pattern.
func (f *configFile) tiktokenClass() string {
	switch name := f.class(); name {
	case "LlamaTokenizer", "PreTrainedTokenizer", "TokenizersBackend":
		return ""
	default:
		return name
	}
}

// isTiktoken reports whether a file begins with a token in base64 and its rank.
func isTiktoken(data []byte) bool {
	line, _, _ := bytes.Cut(data[:min(len(data), 4096)], []byte("\n"))
	token, rank, ok := strings.Cut(strings.TrimRight(string(line), "\r"), " ")
	if _, err := base64.StdEncoding.DecodeString(token); !ok || err != nil || token == "" {
		return false
	}
	_, err := strconv.ParseUint(rank, 10, 31)
	return err == nil
}

// openTiktoken builds the tokenizer of a file of tiktoken.
func openTiktoken(folder string, names []string, c *Config, f configFile) (*Tokenizer, error) {
	path := filepath.Join(folder, names[0])
	data, err := readFile(path, files.Vocabulary)
	if err != nil {
		return nil, err
	}
	made, known := tiktokenClasses[f.tiktokenClass()]
	if !known {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, refused("the class %.60s has a pattern that is not known", f.class()))
	}
	t, err := made.read(data, folder, c, f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

func (k tiktokenClass) read(data []byte, folder string, c *Config, f configFile) (*Tokenizer, error) {
	r := &rankedBytes{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			continue
		}
		text, rank, _ := strings.Cut(line, " ")
		token, err := base64.StdEncoding.DecodeString(text)
		if n, bad := strconv.ParseUint(rank, 10, 31); bad != nil || err != nil || n != uint64(len(r.tokens)) {
			return nil, damaged("line %d is %.100q, want a token in base64 and the rank %d", len(r.tokens)+1, line, len(r.tokens))
		}
		r.tokens = append(r.tokens, string(token))
	}
	file, err := r.file(k.pattern)
	if err != nil {
		return nil, err
	}
	if k.normalizer != "" {
		file.Normalizer = []byte(k.normalizer)
	}
	c.standard(k.standard, f, nil)
	n := len(r.tokens)
	if k.special != nil {
		for _, token := range k.special() {
			file.AddedTokens = append(file.AddedTokens, addedFile{ID: uint32(n), Content: token, Special: true})
			n++
		}
	} else if err := file.addTokens(folder, c, f, func(string) (uint32, bool) { return 0, false }, n); err != nil {
		return nil, err
	}
	return file.build()
}
