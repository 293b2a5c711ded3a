package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/plan"
	"github.com/snug-ml/snug/qlora"
	"github.com/snug-ml/snug/transformer"
)

// usualContext is the maximum context that is assumed for a published model without -context.
const usualContext = 2048

// weightFiles are the files that a folder may have its weights in, or the index of its weights.
var weightFiles = []string{"model.safetensors", "model.safetensors.index.json"}

// readFolder returns the model of a published folder or of its config.json. If the folder has weights, their names and
// shapes must fit config.json.
func (f *planFlags) readFolder(name string) (plan.Model, error) {
	if filepath.Ext(name) != ".json" {
		if err := wantFolderOf("plan", "", name); err != nil {
			return plan.Model{}, err
		}
	}
	c, err := transformer.ReadConfig(name)
	if err != nil {
		return plan.Model{}, usagef("plan: %w", err)
	}
	if err := checkWeights(c, name); err != nil {
		return plan.Model{}, usagef("plan: %s: %w", name, err)
	}
	f.unread = unreadFields(c)
	if c.Stored != 0 && f.decodes(c.Stored) {
		c = c.Held(transformer.Options{Decode: true})
	}
	f.longest, f.stored = c.Context, c.Stored
	most := usualContext
	if f.memory > 0 {
		most = defaultContext
	}
	m, err := c.Plan(cmp.Or(f.context, min(c.Context, most)))
	if err != nil {
		return m, usagef("plan: %s: %w", name, err)
	}
	quantizeAll(m, strings.Join(f.base, ","))
	m.Name = folderName(name, m.Name)
	return m, nil
}

// decodes reports whether matrices that a folder has in a form are decoded: to train, to begin adapters with a part of them, or because -base
// names others alone.
func (f *planFlags) decodes(form qlora.Type) bool {
	base := cmp.Or(f.kind().base, strings.Join(f.base, ","))
	return f.rank == 0 || base != "" && base != form.String() || base == "" && f.kind().init != ""
}

// unreadFields is the line about fields of config.json that have no effect, empty if there are none.
func unreadFields(c *transformer.Config) string {
	names := slices.DeleteFunc(slices.Clone(c.Unread), func(name string) bool { // of programs, not of the model
		return strings.HasPrefix(name[strings.LastIndexByte(name, '.')+1:], "_")
	})
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("snug: config.json: transformers does not read %.600s for the family %s, so this changes nothing\n", strings.Join(names, ", "), c.Family)
}

// checkWeights compares a folder's weights, if there are any, with its config.json, and notes which matrices are in floats.
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
	if c.Stored != 0 {
		c.Floats, err = c.FloatsIn(w)
		return err
	}
	_, err = c.Check(w)
	return err
}

// quantizeAll makes the matrices that a folder has in floats take the form of the others, if a flag -base names that.
func quantizeAll(m plan.Model, form string) {
	if form != "" {
		for i := range m.Layers {
			m.Layers[i].Floats = nil
		}
	}
}

// folderName returns the name of a folder, or the family of its model if that name cannot be printed.
func folderName(path, family string) string {
	whole, err := filepath.Abs(path)
	if err != nil {
		return family
	}
	switch info, err := os.Stat(whole); {
	case err != nil || info.IsDir():
	case gguf.IsFile(whole):
		whole = strings.TrimSuffix(whole, filepath.Ext(whole))
	default:
		whole = filepath.Dir(whole)
	}
	name := filepath.Base(whole)
	if len(name) < 2 || len(name) > 80 || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return family
	}
	return name
}

// assumedContext returns a sentence with the context that was assumed, "" if the user gave it.
func (f *planFlags) assumedContext(tokens int) string {
	if f.longest == 0 || f.context > 0 {
		return ""
	}
	return fmt.Sprintf("sequences of %d tokens are assumed, as no -context is given; the model is made for %d\n\n", tokens, f.longest)
}
