package tokenizer

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
)

// This file has the pre-tokenizers that llama.cpp knows: it recognizes them by what the sections of tokenizer.json do, and makes the
// sections of their names.

// preKind is a pre-tokenizer of llama.cpp's: its names in tokenizer.ggml.pre, of which the first is written, the stages that they
// stand for, and whether a word that is a token is that token, whatever the merges.
type preKind struct {
	names  string
	stages []string
	whole  bool
}

// Stages, as stagesOf names them. A pattern is its text.
const (
	bytesStage  = "bytes"  // ByteLevel without a pattern
	gpt2Stage   = "gpt-2"  // ByteLevel with its pattern
	digitsStage = "digits" // Digits, one by one
)

// preKinds are in the order in which a written file names one. The patterns of tekken, gpt-4o, kimi-k2 and tiny_aya are those of
// the published tokenizers; llama.cpp approaches them with others, which cut some words with capitals or marks elsewhere.
var preKinds = []preKind{
	{"gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling", []string{gpt2Stage}, false},
	{"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano glm4 glm5", []string{llama3Words, bytesStage}, true},
	{"smaug-bpe dbrx chatglm-bpe", []string{llama3Words, bytesStage}, false},
	{"qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2", []string{qwen2Words, bytesStage}, false},
	{"qwen35", []string{qwen35Words, bytesStage}, false},
	{"smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", []string{digitsStage, gpt2Stage}, false},
	{"tekken", []string{tekkenWords, bytesStage}, true},
	{"gpt-4o llama4 kanana2 talkie minimax-m2", []string{gpt4oWords, bytesStage}, false},
	{"seed-coder", []string{seedWords, bytesStage}, false},
	{"deepseek-llm", []string{`[\r\n]`, deepseekWords, deepseekSigns, `\s+$`, deepseekHan, `\p{N}+`, bytesStage}, false},
	{"deepseek-coder", []string{`[\r\n]`, `\s?\p{L}+`, `\s?\p{P}+`, deepseekHan, `\p{N}`, bytesStage}, false},
	{"deepseek-v3 hunyuan-dense joyai-llm hy_v4", []string{`\p{N}{1,3}`, hanKana, deepseek3Words, bytesStage}, false},
	{"falcon", []string{"[\\p{P}\\$\\+<=>\\^~\\|`]+", gpt2Words, `[0-9][0-9][0-9]`, bytesStage}, false},
	{"default", []string{`[\p{P}\$\+<=>\^~\|]+`, gpt2Words, `\p{N}+`, `[0-9][0-9][0-9]`, bytesStage}, false},
	{"poro-chat bloom gpt3-finnish", []string{bloomWords, bytesStage}, false},
	{"viking", []string{bloomWords, `\p{N}`, bytesStage}, false},
	{"jais-2", []string{llama3Words[:len(llama3Words)-len(`\s+(?!\S)|\s+`)] + jais2Spaces, bytesStage}, false},
	{"kimi-k2", []string{kimiWords, bytesStage}, false},
	{"superbpe", []string{`\p{N}+`, `(?=(?:\d{3})+(?!\d))`, bytesStage}, false},
	{"bailingmoe bailingmoe2 llada-moe", []string{bailingWords, bytesStage}, false},
	{"exaone-moe", []string{exaoneWords, bytesStage}, false},
	{"laguna", []string{`[^\n]+|[\n]+`, qwen2Words, bytesStage}, false},
	{"minicpm5", []string{`\p{N}{1,3}`, minicpmWords, bytesStage}, true},
	{"tiny_aya cohere2moe", []string{`\d{1,3}(?=(?:\d{3})*(?!\w))`, gpt4oWords, bytesStage}, false},
	{"ufakzeka", []string{ufakzekaWords, bytesStage}, false},
}

// composed are the names of published tokenizers that have NFC, which llama.cpp does not apply and its files do not say.
var composed = []string{"qwen2", "qwen35", "mpt", "olmo", "command-r"}

// preKindNamed returns the pre-tokenizer of a name.
func preKindNamed(name string) (preKind, error) {
	for _, k := range preKinds {
		if slices.Contains(strings.Fields(k.names), name) {
			return k, nil
		}
	}
	return preKind{}, refused("tokenizer.ggml.pre is %.40q, which is none of the pre-tokenizers that are read: convert the model from its published folder", name)
}

// section returns the section of tokenizer.json for the stages.
func (k preKind) section() (json.RawMessage, error) {
	parts := make([]any, len(k.stages))
	for i, stage := range k.stages {
		switch stage {
		case bytesStage, gpt2Stage:
			pattern := stage == gpt2Stage
			parts[i] = byteLevelFile{Type: "ByteLevel", TrimOffsets: true, UseRegex: &pattern}
		case digitsStage:
			parts[i] = map[string]any{"type": "Digits", "individual_digits": true}
		default:
			parts[i] = map[string]any{"type": "Split", "pattern": patternFile{Regex: &stage}, "behavior": isolated, "invert": false}
		}
	}
	return plainJSON(map[string]any{"type": "Sequence", "pretokenizers": parts})
}

// usualSpelling spells parts of patterns as those here do.
var usualSpelling = strings.NewReplacer(spelledOut, contractions, "\r", `\r`, "\n", `\n`)

// preKindOf returns the pre-tokenizer of llama.cpp's that does what a section says. If only its treatment of words that are
// tokens is another, note says so.
func preKindOf(section json.RawMessage, whole bool) (name, note string, err error) {
	stages, err := stagesOf(section)
	if err != nil {
		return "", "", err
	}
	for _, k := range preKinds {
		if !slices.Equal(k.stages, stages) {
			continue
		}
		first, _, _ := strings.Cut(k.names, " ")
		if k.whole == whole {
			return first, "", nil
		}
		name = cmp.Or(name, first)
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
			return []string{usualSpelling.Replace(*f.Pattern.Regex)}, nil
		}
	}
	return []string{kind}, nil
}
