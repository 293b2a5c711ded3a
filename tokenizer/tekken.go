package tokenizer

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// tekkenFile is Mistral's tekken.json, as far as texts depend on it.
type tekkenFile struct {
	Config struct {
		Pattern    string `json:"pattern"`
		Size       int64  `json:"default_vocab_size"`
		NumSpecial int64  `json:"default_num_special_tokens"`
		Version    string `json:"version"`
	} `json:"config"`
	Vocab []struct {
		Rank  int64  `json:"rank"`
		Bytes []byte `json:"token_bytes"`
	} `json:"vocab"`
	Special []struct {
		Rank int64  `json:"rank"`
		Text string `json:"token_str"`
	} `json:"special_tokens"`
}

// tekkenSpecial are the special tokens of files that do not have them, up to version v7.
const tekkenSpecial = "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"

func init() {
	addForm(form{order: 1, files: [][]string{{"tekken.json"}}, open: openTekken})
}

// openTekken builds the tokenizer of tekken.json. The first ids are those of the special tokens.
func openTekken(folder string, names []string, c *Config, f configFile) (*Tokenizer, error) {
	path := filepath.Join(folder, names[0])
	data, err := readFile(path, files.Vocabulary)
	if err != nil {
		return nil, err
	}
	t, err := readTekken(data, folder, c, f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %s: %w", path, err)
	}
	return t, nil
}

func readTekken(data []byte, folder string, c *Config, f configFile) (*Tokenizer, error) {
	var in tekkenFile
	if err := (strictjson.Options{Open: true, MaxBytes: maxFile}).Unmarshal(data, &in); err != nil {
		return nil, parsed(err)
	}
	r, err := in.tokens()
	if err != nil {
		return nil, err
	}
	file, err := r.file(in.Config.Pattern)
	if err != nil {
		return nil, err
	}
	for id, token := range r.special {
		file.AddedTokens = append(file.AddedTokens, addedFile{ID: uint32(id), Content: token, Special: true})
	}
	t, err := file.build()
	if err != nil {
		return nil, err
	}
	c.standard([]SpecialToken{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}, {"pad_token", "<pad>"}}, f, t)
	for id, token := range f.Decoder {
		if known, ok := t.ID(token.Content); !ok || strconv.Itoa(int(known)) != id {
			return nil, damaged("tokenizer_config.json has the added token %.100q with the id %.20q, which tekken.json does not have", token.Content, id)
		}
	}
	if c.AddBOS == nil {
		begins := c.BOS != ""
		c.AddBOS = &begins
	}
	return t, nil
}

// tokens returns the vocabulary: as many tokens as the configuration says.
func (in *tekkenFile) tokens() (*rankedBytes, error) {
	n := in.Config.Size - in.Config.NumSpecial
	if in.Config.NumSpecial < 0 || n < 1 || n > int64(len(in.Vocab)) || in.Config.NumSpecial > maxRead {
		return nil, damaged("config: a vocabulary of %d tokens with %d special ones, and the file has %d others", in.Config.Size, in.Config.NumSpecial, len(in.Vocab))
	}
	r := &rankedBytes{first: int32(in.Config.NumSpecial)}
	if in.Special == nil {
		if v, err := strconv.Atoi(strings.TrimPrefix(strings.SplitN(in.Config.Version, "m", 2)[0], "v")); err != nil || v > 7 {
			return nil, damaged("the file of version %.20q has no special_tokens", in.Config.Version)
		}
		r.special = strings.Fields(tekkenSpecial)
	}
	r.special = append(r.special, make([]string, len(in.Special))...)
	for _, s := range in.Special {
		if s.Rank < 0 || s.Rank >= int64(len(r.special)) || r.special[s.Rank] != "" {
			return nil, damaged("special_tokens: %.100q has the rank %d, want another one of 0 to %d", s.Text, s.Rank, len(r.special)-1)
		}
		r.special[s.Rank] = s.Text
	}
	if len(r.special) > int(r.first) {
		return nil, damaged("%d special tokens, and config says %d", len(r.special), r.first)
	}
	for len(r.special) < int(r.first) {
		r.special = append(r.special, fmt.Sprintf("<SPECIAL_%d>", len(r.special)))
	}
	for i, v := range in.Vocab[:n] {
		if v.Rank != int64(i) {
			return nil, damaged("vocab[%d] has the rank %d", i, v.Rank)
		}
		r.tokens = append(r.tokens, string(v.Bytes))
	}
	r.special = slices.Clip(r.special)
	return r, nil
}
