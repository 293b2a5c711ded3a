package segment

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/files"
)

// layout is a form in which models are published.
type layout interface {
	rename(name string) string    // returns the name of a parameter from its name in transformers
	metadata() map[string]string  // of a file of weights
	description() []byte          // config.json, if the layout has it
	extras(from, to string) error // writes the files besides weights, of a model that is in from
}

// source is a model's folder or file.
type source struct {
	*amp.Weights
	config Config
	layout layout
}

// openSource opens a folder or a file, and reads what its model computes.
func openSource(path string) (s *source, err error) {
	if path == "" {
		return nil, fmt.Errorf("the folder has no name: %w", snug.ErrConfig)
	}
	s = &source{}
	_, err = os.Stat(filepath.Join(path, configName))
	bare := err != nil // a file, or a folder that has none
	if !bare {
		text, err := files.ReadInput(filepath.Join(path, configName), files.Description)
		if err != nil {
			return nil, err
		}
		if s.config, err = parseConfig(text); err != nil {
			return nil, fmt.Errorf("%s: %w", configName, err)
		}
		s.layout = &huggingFace{text}
	}
	if s.Weights, err = amp.OpenWeights(path); err != nil {
		return nil, err
	}
	if bare {
		s.config, err = describe(s.Weights)
		s.layout = newOriginal(&s.config)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// readConfig reads what the model of a folder or a file computes.
func readConfig(path string) (Config, layout, error) {
	s, err := openSource(path)
	if err != nil {
		return Config{}, nil, err
	}
	return s.config, s.layout, s.Close()
}

// IsModel reports whether a folder has a config.json of model_type sam, whatever else is in it.
func IsModel(dir string) bool {
	if dir == "" {
		return false
	}
	text, err := files.ReadInput(filepath.Join(dir, configName), files.Description)
	var top struct {
		ModelType string `json:"model_type"`
	}
	return err == nil && lenientJSON.Unmarshal(text, &top) == nil && top.ModelType == "sam"
}

// same returns an error unless the model has the configuration and the files of another one.
func (s *source) same(c *Config, l layout) error {
	if !reflect.DeepEqual(s.config, *c) || !bytes.Equal(s.layout.description(), l.description()) {
		return fmt.Errorf("the folder or file has another %s, or tensors of other shapes, than when the model was opened: %w", configName, snug.ErrCorrupt)
	}
	return nil
}

// huggingFace is the layout of transformers.
type huggingFace struct{ text []byte } // config.json

func (h *huggingFace) rename(name string) string { return name }

func (h *huggingFace) metadata() map[string]string { return map[string]string{"format": "pt"} }

func (h *huggingFace) description() []byte { return h.text }

func (h *huggingFace) extras(from, to string) error {
	text, err := inFloat32(bytes.Clone(h.text))
	if err != nil {
		return err
	}
	if err := copyFiles(from, to, pixelsName, "processor_config.json"); err != nil {
		return err
	}
	return replace(to, configName, text)
}

// copyFiles copies the files that a folder has of some names.
func copyFiles(from, to string, names ...string) error {
	for _, name := range names {
		text, err := files.ReadInput(filepath.Join(from, name), files.Description)
		if err == nil {
			err = replace(to, name, text)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
