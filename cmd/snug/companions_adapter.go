package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/tokenizer"
	"github.com/snug-ml/snug/transformer"
)

// This file has the tokenizers that folders of adapters have, which trainers save beside the adapter. Where tokens were added,
// only that tokenizer has their names.

// vocabularies are the files that hold a tokenizer's vocabulary. Every tokenizer has at least one of them.
var vocabularies = []string{"tokenizer.json", "vocab.json", "tokenizer.model", "tekken.json", "vocab.txt", "qwen.tiktoken", "tiktoken.model"}

// ofTokenizer says whether a companion belongs to the tokenizer, with its chat templates.
func ofTokenizer(name string) bool { return name != "generation_config.json" }

// tokenizerOf returns the folder of the tokenizer of a model with an adapter, and the rows of its vocabulary: the folder of the
// adapter if the vocabulary is another than the model's or that tokenizer has more tokens, and else that of the model. note
// is a line about it, empty if there is no choice. gets is what has the tokenizer, such as "the output gets".
func tokenizerOf(model, adapter string, c *transformer.Config, gets string) (dir string, rows int, note string, err error) {
	if adapter == "" || gguf.IsFile(adapter) { // such a file has no tokenizer
		return model, c.Vocab, "", nil
	}
	if rows, err = adaptedRows(adapter, c); err != nil {
		return "", 0, "", err
	}
	differs, found, err := otherTokenizer(model, adapter)
	if err != nil {
		return "", 0, "", err
	}
	switch {
	case !found && rows > c.Vocab:
		return model, rows, fmt.Sprintf("snug: %s has a vocabulary of %d rows, the model has %d, and there is no tokenizer: %s the model's, which has no names for the new rows\n",
			escaped(adapter), rows, c.Vocab, gets), nil
	case differs == "":
		return model, rows, "", nil
	}
	dir, why := model, "the model's, because the vocabulary is the model's"
	if rows != c.Vocab {
		dir, why = adapter, fmt.Sprintf("it, because its vocabulary has %d rows, and the model's %d", rows, c.Vocab)
	} else if added := addedTokens(model, adapter); added > 0 {
		dir, why = adapter, fmt.Sprintf("it, because it has %d tokens that the model's does not have", added)
	}
	return dir, rows, fmt.Sprintf("snug: %s has a tokenizer of its own (%s is another): %s %s\n", escaped(adapter), differs, gets, why), nil
}

// adaptedRows returns the rows of the vocabulary of a model with an adapter.
func adaptedRows(adapter string, c *transformer.Config) (int, error) {
	_, saved, err := qlora.SavedTensors(adapter)
	if err != nil {
		return 0, err
	}
	for _, t := range saved {
		module := strings.TrimSuffix(strings.TrimSuffix(t.Name, ".weight"), ".base_layer")
		if slices.Contains([]string{"embed_tokens", "wte", "lm_head"}, module[strings.LastIndexByte(module, '.')+1:]) && len(t.Shape) == 2 {
			return t.Shape[0], nil
		}
	}
	return c.Vocab, nil
}

// otherTokenizer reports whether the folder of an adapter has a tokenizer, and names the first of its files that is not as the
// model's, empty if all are.
func otherTokenizer(model, adapter string) (differs string, found bool, err error) {
	same := func(name string, f io.ReaderAt, size int64) (bool, error) {
		return sameCompanion(filepath.Join(model, filepath.FromSlash(name)), companionKind(name), f, size)
	}
	if gguf.IsFile(model) {
		texts, err := ggufTokenizer(model)
		if err != nil {
			return "", false, err
		}
		same = func(name string, f io.ReaderAt, size int64) (bool, error) {
			text, err := io.ReadAll(io.NewSectionReader(f, 0, size))
			return err == nil && bytes.Equal(text, texts[name]), err
		}
	}
	err = eachCompanion(adapter, true, ofTokenizer, func(name string, f io.ReaderAt, size int64) error {
		found = found || slices.Contains(vocabularies, name)
		if differs != "" {
			return nil
		}
		equal, err := same(name, f, size)
		if err == nil && !equal {
			differs = name
		}
		return err
	})
	if !found {
		differs = ""
	}
	return differs, found, err
}

// sameCompanion reports whether a file of the model has the contents of f.
func sameCompanion(path string, kind files.Kind, f io.ReaderAt, size int64) (same bool, err error) {
	of, length, err := files.OpenInput(path, kind)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, of.Close()) }()
	if length != size {
		return false, nil
	}
	var sums [2][]byte
	for i, one := range []io.ReaderAt{of, f} {
		sum := sha256.New()
		if _, err := io.Copy(sum, io.NewSectionReader(one, 0, size)); err != nil {
			return false, err
		}
		sums[i] = sum.Sum(nil)
	}
	return slices.Equal(sums[0], sums[1]), nil
}

// addedTokens returns how many tokens the adapter's tokenizer has more than the model's, 0 if one of them is of a form that
// package tokenizer does not read: then the rows of the vocabulary decide.
func addedTokens(model, adapter string) int {
	base, err := tokenizer.Open(model)
	if err != nil {
		return 0
	}
	own, err := tokenizer.Open(adapter)
	if err != nil {
		return 0
	}
	return own.Len() - base.Len()
}
