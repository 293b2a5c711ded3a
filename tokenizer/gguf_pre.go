package tokenizer

import (
	"encoding/json"
	"slices"
	"strings"
)

// This file recognizes the pre-tokenizers that llama.cpp has, by what the sections of tokenizer.json do.

// Patterns of published tokenizers. llama.cpp has them in llama-vocab.cpp, where it also spells out the letters of contractions.
const (
	contractions  = `(?i:'s|'t|'re|'ve|'m|'ll|'d)`
	spelledOut    = `(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])`
	symbolsSpaces = `| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	slashSpaces   = `| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	lowerWord     = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+`
	upperWord     = `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`

	llama3Words = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}` + symbolsSpaces
	qwen2Words  = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}` + symbolsSpaces
	qwen35Words = contractions + `|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	seedWords   = contractions + `|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+`
	tekkenWords = lowerWord + `|` + upperWord + `|\p{N}` + slashSpaces
	gpt4oWords  = lowerWord + contractions + `?|` + upperWord + contractions + `?|\p{N}{1,3}` + slashSpaces
)

// preKind is a pre-tokenizer of llama.cpp's: the name in tokenizer.ggml.pre, the stages that it stands for, and whether a word
// that is a token is that token, whatever the merges.
type preKind struct {
	name   string
	stages []string
	whole  bool
}

// Stages, as stagesOf names them. A pattern is its text.
const (
	bytesStage  = "bytes"  // ByteLevel without a pattern
	gpt2Stage   = "gpt-2"  // ByteLevel with its pattern
	digitsStage = "digits" // Digits, one by one
)

var preKinds = []preKind{
	{"gpt-2", []string{gpt2Stage}, false},
	{"llama-bpe", []string{llama3Words, bytesStage}, true},
	{"smaug-bpe", []string{llama3Words, bytesStage}, false},
	{"qwen2", []string{qwen2Words, bytesStage}, false},
	{"qwen35", []string{qwen35Words, bytesStage}, false},
	{"smollm", []string{digitsStage, gpt2Stage}, false},
	{"tekken", []string{tekkenWords, bytesStage}, true},
	{"gpt-4o", []string{gpt4oWords, bytesStage}, false},
	{"seed-coder", []string{seedWords, bytesStage}, false},
}

// preKindOf returns the pre-tokenizer of llama.cpp's that does what a section says. If only its treatment of words that are
// tokens is another, note says so.
func preKindOf(section json.RawMessage, whole bool) (name, note string, err error) {
	stages, err := stagesOf(section)
	if err != nil {
		return "", "", err
	}
	for _, k := range preKinds {
		if slices.Equal(k.stages, stages) {
			if k.whole == whole {
				return k.name, "", nil
			}
			name = k.name
		}
	}
	if name == "" {
		return "", "", refused("pre_tokenizer: %.200q is none that llama.cpp has", strings.Join(stages, " "))
	}
	how := "also where its merges lead elsewhere"
	if whole {
		how = "only if its merges lead there"
	}
	return name, "llama.cpp makes a word one token, if there is such a token, " + how + ", and this tokenizer does otherwise", nil
}

// stagesOf returns the stages of a pre-tokenizer, with Sequences laid flat.
func stagesOf(section json.RawMessage) ([]string, error) {
	kind, err := typeOf(section)
	if err != nil || kind == "" {
		return nil, err
	}
	switch kind {
	case "Sequence":
		return sequence(section, "pretokenizers", 0, func(part json.RawMessage, _ int) ([]string, error) { return stagesOf(part) })
	case "ByteLevel":
		var f byteLevelFile
		if err := read(section, &f); err != nil {
			return nil, err
		}
		switch {
		case f.PrefixSpace:
			return []string{"ByteLevel with add_prefix_space"}, nil
		case isSet(f.UseRegex) || f.UseRegex == nil:
			return []string{gpt2Stage}, nil
		}
		return []string{bytesStage}, nil
	case "Digits":
		var f struct {
			Type       string `json:"type"`
			Individual bool   `json:"individual_digits"`
		}
		if err := read(section, &f); err != nil || f.Individual {
			return []string{digitsStage}, err
		}
	case "Split":
		var f struct {
			Type     string      `json:"type"`
			Pattern  patternFile `json:"pattern"`
			Behavior behavior    `json:"behavior"`
			Invert   bool        `json:"invert"`
		}
		if err := read(section, &f); err != nil {
			return nil, err
		}
		if f.Pattern.Regex != nil && f.Behavior == isolated && !f.Invert {
			return []string{strings.ReplaceAll(*f.Pattern.Regex, spelledOut, contractions)}, nil
		}
	}
	return []string{kind}, nil
}
