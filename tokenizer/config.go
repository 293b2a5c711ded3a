package tokenizer

import (
	"encoding/json"
	"fmt"
	"path/filepath"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/files"
	"github.com/snug-ml/snug/internal/strictjson"
)

// Config is what tokenizer_config.json and chat_template.jinja say. Encode does not use it, and adds the special tokens
// that tokenizer.json says.
type Config struct {
	// ChatTemplate is the text of the chat template, in Jinja2: chat_template.jinja, or else the field of
	// tokenizer_config.json. It is empty for models without one.
	ChatTemplate string
	// Templates are further templates by their names, such as "tool_use".
	Templates map[string]string
	// BOS, EOS, Pad and Unknown are the tokens for the beginning and the end of a text, for padding and for unknown
	// characters; empty where there is none. [Tokenizer.ID] returns their ids.
	BOS, EOS, Pad, Unknown string
	// AddBOS and AddEOS say whether the library transformers adds BOS and EOS to texts; nil if the file does not say.
	AddBOS, AddEOS *bool
}

// configFile has the keys of tokenizer_config.json that matter here. The others configure classes of transformers, and
// are passed over.
type configFile struct {
	ChatTemplate json.RawMessage `json:"chat_template"`
	BOS          *specialFile    `json:"bos_token"`
	EOS          *specialFile    `json:"eos_token"`
	Pad          *specialFile    `json:"pad_token"`
	Unknown      *specialFile    `json:"unk_token"`
	AddBOS       *bool           `json:"add_bos_token"`
	AddEOS       *bool           `json:"add_eos_token"`
}

// specialFile is a token: a string, an object with its content, or null.
type specialFile string

func (s *specialFile) UnmarshalJSON(data []byte) error {
	var content *string
	if len(data) > 0 && data[0] == '{' {
		var object struct {
			Content *string `json:"content"`
		}
		if err := json.Unmarshal(data, &object); err != nil || object.Content == nil {
			return fmt.Errorf("%.100q, want a token with its content", data)
		}
		content = object.Content
	} else if err := json.Unmarshal(data, &content); err != nil {
		return fmt.Errorf("%.100q, want a token, an object or null", data)
	}
	*s = specialFile(text(content))
	return nil
}

func (s *specialFile) text() string { return text((*string)(s)) }

// readConfig reads the files of a folder that are there.
func readConfig(folder string) (c Config, err error) {
	data, err := readIf(filepath.Join(folder, "tokenizer_config.json"), files.Description)
	if err != nil {
		return c, err
	}
	if data != nil {
		if c, err = parseConfig(data); err != nil {
			return Config{}, fmt.Errorf("tokenizer: tokenizer_config.json: %w: %w", err, snug.ErrCorrupt)
		}
	}
	template, err := readIf(filepath.Join(folder, "chat_template.jinja"), files.Template)
	if err != nil {
		return Config{}, err
	}
	if template != nil {
		c.ChatTemplate = string(template)
	}
	return c, nil
}

func parseConfig(data []byte) (c Config, err error) {
	var f configFile
	if err := (strictjson.Options{Open: true}).Unmarshal(data, &f); err != nil {
		return c, err
	}
	c = Config{
		BOS: f.BOS.text(), EOS: f.EOS.text(), Pad: f.Pad.text(), Unknown: f.Unknown.text(),
		AddBOS: f.AddBOS, AddEOS: f.AddEOS,
	}
	if len(f.ChatTemplate) == 0 || string(f.ChatTemplate) == "null" {
		return c, nil
	}
	if f.ChatTemplate[0] == '"' {
		return c, json.Unmarshal(f.ChatTemplate, &c.ChatTemplate)
	}
	var list []struct {
		Name     string `json:"name"`
		Template string `json:"template"`
	}
	if err := options.Unmarshal(f.ChatTemplate, &list); err != nil {
		return c, fmt.Errorf("chat_template: %w", err)
	}
	for _, t := range list {
		if t.Name == "default" {
			c.ChatTemplate = t.Template
			continue
		}
		if c.Templates == nil {
			c.Templates = map[string]string{}
		}
		c.Templates[t.Name] = t.Template
	}
	return c, nil
}
