package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/snug-ml/snug/internal/files"
)

// maxConfigBytes is the largest file of -config.
const maxConfigBytes = 1 << 20

// configFlag is the flag -config. Its file is read after the command line, which has precedence.
func configFlag() *flagRow {
	return fileFlag("config", "FILE", new(string), "read flags from a file of YAML or JSON, an object with these names: lora: 8. A list joins with commas; "+
		"a switch is true or false. What the command line has overrides it. Names of files are as on the command line")
}

// configure gives the flags the values of the file of -config, unless the command line has them.
func (t flagTable) configure(path string) error {
	if path == "" {
		return nil
	}
	keys, err := readConfig(path)
	for _, k := range keys {
		r := t.named(k.name)
		switch {
		case err != nil:
		case r == nil || k.name == "config":
			err = fmt.Errorf("line %d: there is no flag %.40q, want some of %s", k.line, k.name, strings.Join(t.names("config"), ", "))
		case k.value == nil:
			err = fmt.Errorf("line %d: %s has no value that a flag can have: want a text, a number, true or false, or a list of them", k.line, k.name)
		case r.given:
		default:
			err = r.take(*k.value)
		}
	}
	if err != nil {
		return fmt.Errorf("-config %s: %w", path, err)
	}
	return nil
}

// names returns the names of the flags, but one.
func (t flagTable) names(but string) (names []string) {
	for _, r := range t {
		if r.name != but {
			names = append(names, r.name)
		}
	}
	return names
}

// configKey is a flag in a file.
type configKey struct {
	name  string
	line  int
	value *string // nil: not one that a flag can have
}

// readConfig reads the flags of a file of YAML. JSON is YAML too.
func readConfig(path string) (keys []configKey, err error) {
	f, size, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if size > maxConfigBytes {
		return nil, fmt.Errorf("it has %d bytes, want at most %d", size, maxConfigBytes)
	}
	var doc, second yaml.Node
	d := yaml.NewDecoder(io.LimitReader(f, maxConfigBytes))
	switch err := d.Decode(&doc); {
	case errors.Is(err, io.EOF): // an empty file
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "yaml: "))
	case !errors.Is(d.Decode(&second), io.EOF):
		return nil, fmt.Errorf("it has more than one document of YAML, want one document")
	}
	object := doc.Content[0]
	if object.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want an object of flags, such as lora: 8", object.Line)
	}
	for i := 0; i < len(object.Content); i += 2 {
		k := configKey{name: object.Content[i].Value, line: object.Content[i].Line, value: flagText(object.Content[i+1])}
		if slices.ContainsFunc(keys, func(other configKey) bool { return other.name == k.name }) {
			return nil, fmt.Errorf("line %d: %.40q a second time", k.line, k.name)
		}
		keys = append(keys, k)
	}
	return keys, nil
}

// flagText returns a value as a command line has it, or nil.
func flagText(v *yaml.Node) *string {
	switch {
	case v.Kind == yaml.ScalarNode && v.Tag != "!!null":
		return &v.Value
	case v.Kind == yaml.SequenceNode:
		var words []string
		for _, part := range v.Content {
			if part.Kind != yaml.ScalarNode || part.Tag == "!!null" {
				return nil
			}
			words = append(words, part.Value)
		}
		text := strings.Join(words, ",")
		return &text
	}
	return nil
}
