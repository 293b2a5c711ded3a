package tokenizer

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// templatesFile is the field chat_template: a text, a list of names and texts, or null.
func templatesFile(raw json.RawMessage) (templates map[string]string, err error) {
	templates = map[string]string{}
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil
	case raw[0] == '"':
		var text string
		err = json.Unmarshal(raw, &text)
		templates["default"] = text
	case raw[0] == '{':
		err = options.Unmarshal(raw, &templates)
	default:
		var list []struct {
			Name     string `json:"name"`
			Template string `json:"template"`
		}
		err = options.Unmarshal(raw, &list)
		for _, t := range list {
			if _, twice := templates[t.Name]; twice && err == nil {
				err = fmt.Errorf("the name %.40q comes twice", t.Name)
			}
			templates[t.Name] = t.Template
		}
	}
	if err != nil {
		return nil, fmt.Errorf("chat_template: %w", err)
	}
	return templates, nil
}

// readTemplates finds the chat templates of a folder.
func (c *Config) readTemplates(folder string, field json.RawMessage) error {
	beside, err := readTemplateFiles(folder)
	if err != nil {
		return err
	}
	said, err := templatesFile(field)
	if err != nil {
		return fmt.Errorf("tokenizer: tokenizer_config.json: %w: %w", err, snug.ErrCorrupt)
	}
	processor, has, err := readProcessorTemplates(folder)
	if err != nil {
		return err
	}
	order := []map[string]string{beside, said, processor}
	if has {
		order = []map[string]string{processor, beside, said}
	}
	order = slices.DeleteFunc(order, func(m map[string]string) bool { return m == nil })
	if len(order) == 0 {
		return nil
	}
	own := order[0]
	for _, m := range order {
		c.ChatTemplate = cmp.Or(c.ChatTemplate, m["default"])
	}
	if delete(own, "default"); len(own) > 0 {
		c.Templates = own
	}
	return nil
}

// readProcessorTemplates returns the chat templates that transformers reads for processors alone, nil if there are none, and
// whether the folder has a processor.
func readProcessorTemplates(folder string) (templates map[string]string, has bool, err error) {
	_, missing := os.Stat(filepath.Join(folder, "preprocessor_config.json"))
	has = missing == nil
	for _, name := range []string{processorFile, "chat_template.json"} {
		path := filepath.Join(folder, name)
		data, err := readIf(path, files.Description)
		if err != nil {
			return nil, false, err
		}
		has = has || name == processorFile && data != nil
		if data == nil || templates != nil {
			continue
		}
		var f struct {
			ChatTemplate json.RawMessage `json:"chat_template"`
		}
		if err = (strictjson.Options{Open: true}).Unmarshal(data, &f); err == nil {
			templates, err = templatesFile(f.ChatTemplate)
		}
		if err != nil {
			return nil, false, fmt.Errorf("tokenizer: %s: %w: %w", path, err, snug.ErrCorrupt)
		}
	}
	return templates, has, nil
}

// processorFile is the file of a processor, which may have its chat template too.
const processorFile = "processor_config.json"

// maxTemplates is the most templates of a folder.
const maxTemplates = 64

// The files of templates, and the name of the template that a conversation has without another name.
const (
	templateFileName = "chat_template.jinja"
	templateFolder   = "additional_chat_templates"
	defaultTemplate  = "default"
)

// readTemplateFiles reads chat_template.jinja and additional_chat_templates/*.jinja; nil if there are none.
func readTemplateFiles(folder string) (templates map[string]string, err error) {
	paths := map[string]string{defaultTemplate: filepath.Join(folder, templateFileName)}
	more := filepath.Join(folder, templateFolder)
	entries, err := os.ReadDir(more)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".jinja"); ok && name != "default" {
			paths[name] = filepath.Join(more, e.Name())
		}
	}
	if len(paths) > maxTemplates {
		return nil, fmt.Errorf("tokenizer: %s has %d chat templates, want %d at most: %w", more, len(paths)-1, maxTemplates-1, snug.ErrConfig)
	}
	for name, path := range paths {
		text, err := readIf(path, files.Template)
		if err != nil {
			return nil, err
		}
		if text == nil {
			continue
		}
		if templates == nil {
			templates = map[string]string{}
		}
		templates[name] = string(text)
	}
	return templates, nil
}
