package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/tokenizer"
)

// companions are the files of a model's folder that neither tuning nor merging changes, and that transformers, or a
// program that serves the model, reads beside config.json and the weights: the tokenizer in each of its forms, chat
// templates, and the defaults of generation. The files of processors for images are not among them, because the output
// is a model of text.
var companions = []string{
	"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "tekken.json",
	"vocab.txt", "qwen.tiktoken", "tiktoken.model",
	"chat_template.jinja", "chat_template.json", "generation_config.json",
}

// moreTemplates is the folder in which transformers has further chat templates, NAME.jinja each.
const moreTemplates = "additional_chat_templates"

// maxTemplates is the most files that are taken from moreTemplates.
const maxTemplates = 100

func companionKind(name string) files.Kind {
	switch name {
	case "tokenizer.json", "vocab.json", "merges.txt", "tokenizer.model", "tekken.json", "added_tokens.json", "vocab.txt", "qwen.tiktoken", "tiktoken.model":
		return files.Vocabulary
	}
	if filepath.Ext(name) == ".jinja" {
		return files.Template
	}
	return files.Description
}

// eachCompanion opens the companions of a folder that are there and that takes says, nil for all, one after the other. Unless
// links is set, they are the folder's own, see [files.OpenOwn]. A file of llama.cpp's has those that its metadata say.
func eachCompanion(from string, links bool, takes func(name string) bool, do func(name string, r io.ReaderAt, size int64) error) error {
	if gguf.IsFile(from) {
		return eachInGGUF(from, takes, do)
	}
	names := slices.Clone(companions)
	entries, err := os.ReadDir(filepath.Join(from, moreTemplates))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(entries) > maxTemplates {
		return fmt.Errorf("%s has %d files, want at most %d chat templates: %w", filepath.Join(from, moreTemplates), len(entries), maxTemplates, snug.ErrConfig)
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".jinja" {
			names = append(names, moreTemplates+"/"+e.Name())
		}
	}
	for _, name := range names {
		if takes != nil && !takes(name) {
			continue
		}
		var f *os.File
		var size int64
		if links {
			f, size, err = files.OpenInput(filepath.Join(from, name), companionKind(name))
		} else {
			f, size, err = files.OpenOwn(from, name, companionKind(name))
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var outside *files.OutsideError
		if errors.As(err, &outside) {
			return fmt.Errorf("%w, and -o would get a copy of that file: replace the link by the file, or give -copy-links", err)
		}
		if err != nil {
			return err
		}
		if err := errors.Join(do(name, f, size), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// eachInGGUF is eachCompanion of a file of llama.cpp's.
func eachInGGUF(path string, takes func(name string) bool, do func(name string, r io.ReaderAt, size int64) error) error {
	texts, err := ggufTokenizer(path)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if takes != nil && !takes(name) {
			continue
		}
		if err := do(name, bytes.NewReader(texts[name]), int64(len(texts[name]))); err != nil {
			return err
		}
	}
	return nil
}

// ggufTokenizer returns the files of the tokenizer of a file of llama.cpp's, as transformers has them.
func ggufTokenizer(path string) (texts map[string][]byte, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return tokenizer.FilesOfGGUF(f)
}

// checkCompanions returns an error if one of the companions that takes says, nil for all, cannot be copied.
func checkCompanions(from string, links bool, takes func(name string) bool) error {
	return eachCompanion(from, links, takes, func(string, io.ReaderAt, int64) error { return nil })
}

// copyCompanions copies the companions of a model's folder that takes says, nil for all, into the folder of an output. It is
// called before the first step, so that a file that cannot be read costs no training.
func copyCompanions(to, from string, links bool, takes func(name string) bool) error {
	return eachCompanion(from, links, takes, func(name string, r io.ReaderAt, size int64) error {
		dir, file := filepath.Split(filepath.FromSlash(name))
		if dir != "" {
			if err := os.Mkdir(filepath.Join(to, dir), 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
		}
		return files.Write(files.OS(filepath.Join(to, dir)), file, 0o666, func(w files.File) error {
			n, err := io.Copy(io.NewOffsetWriter(w, 0), io.NewSectionReader(r, 0, size))
			if err == nil && n < size {
				err = fmt.Errorf("%s ended after %d of %d bytes while it was copied: %w", filepath.Join(from, name), n, size, snug.ErrCorrupt)
			}
			return err
		})
	})
}

// isInput says whether a file of a model's or an adapter's folder is one that is read.
func isInput(name string) bool {
	return strings.HasSuffix(name, ".safetensors") || isWeightsIndex(name) || name == "config.json" || name == adapterConfig || slices.Contains(companions, name)
}

// noteLinks says in a line which files of a folder are links out of it.
func noteLinks(w io.Writer, dirs ...string) {
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		links, err := files.Links(dir, isInput)
		if err != nil || len(links) == 0 {
			continue // the reader reports errors
		}
		more := ""
		if n := len(links) - 1; n > 0 {
			more = fmt.Sprintf(", and %d more of its files", n)
		}
		fmt.Fprintf(w, "snug: a link is followed: %s leads to %s%s\n", escaped(filepath.Join(dir, links[0].Name)), escaped(links[0].Target), more)
	}
}
