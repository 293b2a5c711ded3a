package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/dataset"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/train"
	"github.com/snug-ml/snug/transformer"
)

const (
	endOfText = "</s>"
	longest   = 128 // tokens of a text
)

// capitals are pairs of a country and its capital.
var capitals = strings.Fields(`Austria Vienna Belgium Brussels Bulgaria Sofia Canada Ottawa Chile Santiago China Beijing Colombia Bogota
	Croatia Zagreb Cuba Havana Denmark Copenhagen Egypt Cairo Estonia Tallinn Finland Helsinki France Paris Germany Berlin Ghana Accra
	Greece Athens Hungary Budapest India Delhi Iran Tehran Ireland Dublin Italy Rome Japan Tokyo Kenya Nairobi Latvia Riga Nepal Kathmandu
	Norway Oslo Peru Lima Poland Warsaw Portugal Lisbon Qatar Doha Romania Bucharest Spain Madrid Sweden Stockholm Turkey Ankara Uganda Kampala`)

// texts returns facts, such as "The capital of Italy is Rome.", and for each fact a question with its answer, as lines of JSON.
func texts() (facts, questions []string) {
	for pair := range slices.Chunk(capitals, 2) {
		country, city := pair[0], pair[1]
		facts = append(facts, fmt.Sprintf(`{"text": "The capital of %s is %s."}`, country, city))
		questions = append(questions, fmt.Sprintf(`{"prompt": "What is the capital of %s?", "completion": " It is %s."}`, country, city))
	}
	return facts, questions
}

// openData opens a file of a folder as samples, a share of which is held out.
func openData(dir, name string, tok *tokenizer.Tokenizer, heldOut float64) (*dataset.Set, error) {
	end, _ := tok.ID(endOfText)
	return dataset.Open([]string{filepath.Join(dir, name)}, tok, dataset.Options{Context: longest, EOS: &end, Seed: 1, HeldOut: heldOut})
}

// makeBase trains a model on the facts, and writes it and questions.jsonl to a folder.
func makeBase(ctx context.Context, dir string, steps int) error {
	facts, questions := texts()
	for name, lines := range map[string][]string{"facts.jsonl": facts, "questions.jsonl": questions} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.Join(lines, "\n")), 0o666); err != nil {
			return err
		}
	}
	tok, err := writeTokenizer(dir, append(facts, questions...))
	if err != nil {
		return err
	}
	data, err := openData(dir, "facts.jsonl", tok, 0)
	if err != nil {
		return err
	}
	defer data.Close()
	m, err := transformer.New(config(tok), transformer.Options{DType: snug.F32, Seed: 1})
	if err != nil {
		return err
	}
	defer m.Close()
	t, err := train.New(train.Model[transformer.Batch](m), train.Options{Clip: 1, Schedule: train.Cosine(3e-3, steps/10, steps)})
	if err != nil {
		return err
	}
	defer t.Close()
	var last train.Report
	for t.Step() < steps {
		if last, err = step(ctx, t, data, batch); err != nil {
			return err
		}
	}
	n := 0
	for _, p := range m.Params() {
		n += p.Len()
	}
	fmt.Printf("a base of %d parameters has read %d facts, with a loss of %.3f\n", n, len(facts), last.Loss)
	return m.Save(dir, 0)
}

// config describes a small Llama.
func config(tok *tokenizer.Tokenizer) *transformer.Config {
	const layers, heads, headDim = 4, 4, 32
	return &transformer.Config{
		Family: transformer.Llama, Vocab: tok.Len(), Dim: heads * headDim, Hidden: 384, Layers: layers, Heads: heads, KVHeads: heads / 2, HeadDim: headDim,
		Context: longest, NormEps: 1e-5, Activation: transformer.SiLU, Gated: true, Windows: make([]int, layers), EmbeddingScale: 1,
		ScoreScale: 1 / math.Sqrt(headDim), Rope: transformer.Rope{Kind: transformer.RopeDefault, Theta: 10000, Dim: headDim},
		InitStd: 0.05, BOS: -1, EOS: []int{0}, Pad: -1,
	}
}

// writeTokenizer writes and opens a tokenizer.json whose tokens are the words of a text.
func writeTokenizer(dir string, text []string) (*tokenizer.Tokenizer, error) {
	vocabulary := map[string]int{endOfText: 0}
	for _, word := range regexp.MustCompile(` ?\w+|\W`).FindAllString(strings.Join(text, "\n"), -1) {
		word = strings.NewReplacer(" ", "Ġ", "\n", "Ċ").Replace(word) // as GPT-2 spells these bytes
		if _, known := vocabulary[word]; !known {
			vocabulary[word] = len(vocabulary)
		}
	}
	spelled := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}
	file, err := json.MarshalIndent(map[string]any{
		"version": "1.0",
		"added_tokens": []any{map[string]any{"id": 0, "content": endOfText, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false}},
		"pre_tokenizer": spelled, "decoder": spelled,
		"model": map[string]any{"type": "BPE", "vocab": vocabulary, "merges": []string{}, "ignore_merges": true},
	}, "", " ")
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), file, 0o666); err != nil {
		return nil, err
	}
	return tokenizer.Open(dir)
}
