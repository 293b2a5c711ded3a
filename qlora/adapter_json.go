package qlora

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/strictjson"
)

// ownFields returns pointers to the fields of c by their names in the file.
func (c *AdapterOptions) ownFields() map[string]any {
	return map[string]any{
		"r":                   &c.Rank,
		"lora_alpha":          &c.Alpha,
		"lora_dropout":        &c.Dropout,
		"use_rslora":          &c.RSLoRA,
		"use_dora":            &c.DoRA,
		"fan_in_fan_out":      &c.FanInFanOut,
		"target_modules":      &c.Targets,
		"exclude_modules":     &c.Exclude,
		"layers_to_transform": (*oneOrMore[int])(&c.Layers),
		"layers_pattern":      (*oneOrMore[string])(&c.LayersPattern),
		"rank_pattern":        &c.Ranks,
		"alpha_pattern":       &c.Alphas,
		"modules_to_save":     &c.ModulesToSave,
	}
}

// usual are the fields that encode writes into every file, unless Other overrides them.
var usual = map[string]string{"bias": `"none"`, "inference_mode": "true", "init_lora_weights": "true"}

// PEFT's rank and alpha for a file that lacks these fields. For every other field the zero
// value of AdapterOptions is PEFT's default.
const (
	defaultRank  = 8
	defaultAlpha = 8
)

// oneOrMore is an array, or one element of it without brackets.
type oneOrMore[T any] []T

func (x *oneOrMore[T]) UnmarshalJSON(text []byte) error {
	if len(text) > 0 && text[0] == '[' {
		return strictjson.Unmarshal(text, (*[]T)(x))
	}
	*x = make([]T, 1)
	return strictjson.Unmarshal(text, &(*x)[0])
}

// parseAdapterConfig parses a config file. Errors wrap snug.ErrCorrupt, or snug.ErrConfig
// for settings that this package does not support.
func parseAdapterConfig(text []byte) (c AdapterOptions, err error) {
	found, err := members(text)
	if err != nil {
		return c, fmt.Errorf("%w: %w", err, snug.ErrCorrupt)
	}
	if found == nil {
		return c, fmt.Errorf("null, want an object: %w", snug.ErrCorrupt)
	}
	switch kind := string(found["peft_type"]); kind {
	case `"LORA"`:
	case "":
		return c, fmt.Errorf(`the field "peft_type" is missing, want "LORA": %w`, snug.ErrConfig)
	default:
		return c, fmt.Errorf(`adapters of the "peft_type" %.100s, want "LORA": %w`, kind, snug.ErrConfig)
	}
	c.Rank, c.Alpha = defaultRank, defaultAlpha
	own := c.ownFields()
	own["base_model_name_or_path"] = &c.BaseModel
	for _, name := range slices.Sorted(maps.Keys(found)) { // in order, for the same error every time
		to := own[name]
		switch {
		case name == "peft_type", name == "layers_pattern" && isEmpty(found[name]):
		case to != nil && isNull(found[name]) && !isNumber(name):
		case to != nil:
			var err error
			if m, is := to.(*Modules); is {
				err = m.parse(found[name])
			} else {
				err = strictjson.Unmarshal(found[name], to)
			}
			if err == nil {
				err = c.checkNumbers(name)
			}
			if err != nil {
				return c, fmt.Errorf("the field %q has the value %.100s: %w: %w", name, found[name], err, refusal(name, found[name]))
			}
		default:
			if err := checkField(name, found[name]); err != nil {
				return c, err
			}
			if usual[name] == string(found[name]) {
				continue
			}
			if c.Other == nil {
				c.Other = map[string]json.RawMessage{}
			}
			c.Other[name] = found[name]
		}
	}
	if len(c.ModulesToSave) == 0 {
		c.ModulesToSave = nil
	}
	if len(c.Ranks) == 0 {
		c.Ranks = nil
	}
	if len(c.Alphas) == 0 {
		c.Alphas = nil
	}
	return c, nil
}

// isNumber reports whether PEFT refuses null for a field because it computes with it.
func isNumber(name string) bool { return name == "r" || name == "lora_alpha" || name == "lora_dropout" }

// refusal returns the class of the error for a value that AdapterOptions cannot hold:
// snug.ErrConfig where PEFT makes adapters with the value, because Python takes 1 for true
// and true for 1, and snug.ErrCorrupt where PEFT fails.
func refusal(name string, value json.RawMessage) error {
	var v any
	_ = json.Unmarshal(value, &v) // a number beyond float64 stays null
	if takes(name, v) {
		return snug.ErrConfig
	}
	return snug.ErrCorrupt
}

// takes reports whether PEFT makes adapters with a value that AdapterOptions cannot hold.
func takes(name string, value any) bool {
	number, isFloat := value.(float64)
	truth, isBool := value.(bool)
	list, isList := value.([]any)
	object, isObject := value.(map[string]any)
	switch name {
	case "r", "rank_pattern":
		return false
	case "lora_alpha":
		return isFloat || isBool
	case "lora_dropout":
		return isBool || isFloat && number <= 1
	case "alpha_pattern":
		for _, alpha := range object {
			if !takes("lora_alpha", alpha) {
				return false
			}
		}
		return isObject
	case "modules_to_save":
		return isList || isObject || isBool && !truth || isFloat && number == 0
	case "target_modules": // the keys of an object are its names
		return isObject
	case "layers_to_transform":
		return isBool || isList || isObject
	case "exclude_modules":
		return isList || isObject || isBool && !truth || isFloat && number == 0
	case "layers_pattern":
		return isObject || len(list) > 0
	}
	return true // by its truth, or not at all
}

// members returns the values of an object, without white space.
func members(text []byte) (map[string]json.RawMessage, error) {
	var found map[string]json.RawMessage
	if err := strictjson.Unmarshal(text, &found); err != nil {
		return nil, err
	}
	for name, value := range found {
		var b bytes.Buffer
		if err := json.Compact(&b, value); err != nil {
			return nil, err
		}
		found[name] = b.Bytes()
	}
	return found, nil
}

// encode returns the file of a checked config.
func (c *AdapterOptions) encode() ([]byte, error) {
	all := c.ownFields()
	all["peft_type"], all["base_model_name_or_path"] = "LORA", nil
	for name, value := range usual {
		all[name] = json.RawMessage(value)
	}
	if c.BaseModel != "" {
		all["base_model_name_or_path"] = c.BaseModel
	}
	all["layers_to_transform"], all["layers_pattern"] = c.Layers, c.LayersPattern
	if c.Ranks == nil {
		all["rank_pattern"] = struct{}{} // which PEFT does not take as null
	}
	if c.Alphas == nil {
		all["alpha_pattern"] = struct{}{}
	}
	for name, value := range c.Other {
		all[name] = value
	}
	text, err := json.MarshalIndent(all, "", "  ")
	return append(text, '\n'), err
}
