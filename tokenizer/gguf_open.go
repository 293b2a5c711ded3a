package tokenizer

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/internal/files"
)

// isGGUF reports whether a file begins as those of llama.cpp do.
func isGGUF(path string) (is bool, err error) {
	f, _, err := files.OpenInput(path, files.Weights)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head := make([]byte, len(ggufMagic))
	n, _ := f.ReadAt(head, 0)
	return string(head[:n]) == ggufMagic, nil
}

const ggufMagic = "GGUF"

// openGGUF opens the tokenizer of a GGUF file.
func openGGUF(path string) (t *Tokenizer, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	g, err := readGGUF(f)
	if err == nil {
		t, err = g.tokenizer()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// tokenizer returns the tokenizer with its configuration.
func (g *ggufSource) tokenizer() (*Tokenizer, error) {
	t, err := g.file.build()
	if err != nil {
		return nil, err
	}
	config, err := g.config()
	if err != nil {
		return nil, err
	}
	var f configFile
	if err := f.merge(config, false); err != nil {
		return nil, damaged("%w", err)
	}
	f.sort()
	c := f.config()
	for name, text := range g.templates {
		if name == defaultTemplate {
			c.ChatTemplate = text
			continue
		}
		if c.Templates == nil {
			c.Templates = map[string]string{}
		}
		c.Templates[name] = text
	}
	t.config = c
	return t, nil
}

// FilesOfGGUF returns the files of a folder of transformers with the tokenizer that [Open] reads from a GGUF file, by their
// paths in the folder with slashes: tokenizer.json, tokenizer_config.json and, if there are templates, chat_template.jinja and
// additional_chat_templates/NAME.jinja. Open reads the same tokenizer from these files.
//
// It takes up to 40 times the memory of the tokens, and some hundred MiB. Errors are those of Open.
func FilesOfGGUF(f *gguf.File) (named map[string][]byte, err error) {
	defer fault.Named(&err, "tokenizer: FilesOfGGUF")
	g, err := readGGUF(f)
	if err != nil {
		return nil, err
	}
	if _, err := g.tokenizer(); err != nil {
		return nil, err
	}
	named = map[string][]byte{}
	if named["tokenizer.json"], err = plainJSON(&g.file); err != nil {
		return nil, err
	}
	if named["tokenizer_config.json"], err = g.config(); err != nil {
		return nil, err
	}
	for name, text := range g.templates {
		path := templateFolder + "/" + name + ".jinja"
		if name == defaultTemplate {
			path = templateFileName
		}
		named[path] = []byte(text)
	}
	return named, nil
}
