package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/transformer"
)

// usualContext is the longest sequence that is assumed for a published model.
const usualContext = 2048

// weightFiles are the files of a folder of which one leads to its weights.
var weightFiles = []string{"model.safetensors", "model.safetensors.index.json"}

// readFolder returns the model of a published folder or of its config.json. Weights, where a
// folder has them, must be the model's.
func (f *planFlags) readFolder(name string) (plan.Model, error) {
	c, err := transformer.ReadConfig(name)
	if err != nil {
		return plan.Model{}, usagef("plan: %w", err)
	}
	if err := checkWeights(c, name); err != nil {
		return plan.Model{}, usagef("plan: %s: %w", name, err)
	}
	f.longest = c.Context
	m, err := c.Plan(cmp.Or(f.context, min(c.Context, usualContext)))
	if err != nil {
		return m, usagef("plan: %s: %w", name, err)
	}
	m.Name = folderName(name, m.Name)
	return m, nil
}

// checkWeights compares a folder's weights with its config.json, if it has weights.
func checkWeights(c *transformer.Config, dir string) (err error) {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return err
	}
	found := false
	for _, file := range weightFiles {
		switch _, err := os.Stat(filepath.Join(dir, file)); {
		case err == nil:
			found = true
		case !errors.Is(err, os.ErrNotExist):
			return err
		}
	}
	if !found {
		return nil
	}
	w, err := amp.OpenWeights(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	_, err = c.Check(w)
	return err
}

// folderName names a model by its folder, or by its family where that is no name to print.
func folderName(path, family string) string {
	whole, err := filepath.Abs(path)
	if err != nil {
		return family
	}
	if info, err := os.Stat(whole); err == nil && !info.IsDir() {
		whole = filepath.Dir(whole)
	}
	name := filepath.Base(whole)
	if len(name) < 2 || len(name) > 80 || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return family
	}
	return name
}

// assumedContext says which length of sequences was assumed; "" if it was given.
func (f *planFlags) assumedContext(tokens int) string {
	if f.longest == 0 || f.context > 0 {
		return ""
	}
	return fmt.Sprintf("sequences of %d tokens are assumed, as no -context is given; the model is made for %d\n\n", tokens, f.longest)
}
