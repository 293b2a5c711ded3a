package qlora

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// Module is a parameter of the base model that trained beside adapters, PEFT's modules_to_save.
type Module struct {
	Name  string // of the parameter, such as "lm_head.weight"
	Shape []int
	Value snug.View // of any floating-point type
}

// SavesModule reports whether ModulesToSave names a module. As in PEFT, a module is named by its end, with or without a
// dot before it: "norm" names "model.norm" and "model.layers.0.input_layernorm". Where the field ensure_weight_tying is
// true, "embed_tokens" and "lm_head" name each other.
func (c AdapterOptions) SavesModule(module string) bool {
	named := func(end string) bool { return strings.HasSuffix(module, end) }
	if c.tied() && isEmbedding(module) {
		named = func(end string) bool { return strings.HasSuffix(module, end) || isEmbedding(end) }
	}
	return slices.ContainsFunc(c.ModulesToSave, named)
}

// isEmbedding reports whether PEFT ties a module with others that have one of these names.
func isEmbedding(module string) bool {
	name := module[strings.LastIndexByte(module, '.')+1:]
	return name == "embed_tokens" || name == "lm_head"
}

func (c *AdapterOptions) tied() bool {
	value := c.Other[weightTying]
	return value != nil && !isEmpty(value)
}

// weightTying is the field that makes copies of tied weights stay tied.
const weightTying = "ensure_weight_tying"

// savesParam is SavesModule for a parameter of a module, or of a part of one.
func (c *AdapterOptions) savesParam(name string) bool {
	for dot := strings.LastIndexByte(name, '.'); dot > 0; dot = strings.LastIndexByte(name[:dot], '.') {
		if c.SavesModule(name[:dot]) {
			return true
		}
	}
	return false
}

// tableNames are the ends of the names of embeddings and heads, which PEFT saves beside adapters when the vocabulary was
// resized, when they are targets, or with save_embedding_layers.
var tableNames = []string{"embed_tokens", "lm_head", "wte"}

// isTable reports whether a tensor of a file, without the prefix, is a whole embedding or head of the base model.
func isTable(name string) bool {
	module, isWeight := strings.CutSuffix(name, ".weight")
	module = strings.TrimSuffix(module, ".base_layer")
	return isWeight && slices.Contains(tableNames, module[strings.LastIndexByte(module, '.')+1:])
}

// isTwin reports whether a tensor of a file, without the prefix, is one of the two further copies that PEFT saves of a table
// that is of modules_to_save and was resized. PEFT loads the one without a further name.
func isTwin(w adapterWeights, name string) bool {
	for _, twin := range []string{".modules_to_save.weight", ".original_module.weight"} {
		if module, found := strings.CutSuffix(name, twin); found && isTable(module+".weight") {
			_, found = w.Tensor(adapterPrefix + module + ".weight")
			return found
		}
	}
	return false
}

// SavedTensors returns the parameters of the base model that a folder of adapters has beside them, by name and shape:
// those of ModulesToSave, and embeddings and heads, which PEFT saves when the vocabulary was resized or when they are targets
// (then with ".base_layer" before ".weight"). [LoadModules] reads them. Errors are those of [LoadAdapters].
func SavedTensors(dir string) (c AdapterOptions, list []amp.Tensor, err error) {
	w, c, err := openModules(openIn(dir))
	if err != nil {
		return c, nil, fmt.Errorf("qlora: saved tensors of %q: %w", dir, err)
	}
	list = c.savedIn(w)
	if err := w.close(); err != nil {
		return c, nil, fmt.Errorf("qlora: saved tensors of %q: %w", dir, err)
	}
	return c, list, nil
}

// savedIn lists the parameters of the base model in a file.
func (c *AdapterOptions) savedIn(w adapterWeights) (list []amp.Tensor) {
	for _, t := range w.Tensors() {
		if name := strings.TrimPrefix(t.Name, adapterPrefix); c.isSaved(name) || isTable(name) {
			t.Name = name
			list = append(list, t)
		}
	}
	return list
}

// openModules opens the weights of a folder of adapters, and reads its config.
func openModules(open opener) (w adapterWeights, c AdapterOptions, err error) {
	if w, err = openAdapters(open); err != nil {
		return w, c, err
	}
	text, err := adapterConfigOf(open, w.Metadata()[adapterSum])
	if err == nil {
		if c, err = parseAnyConfig(text); err != nil {
			err = fmt.Errorf("%s: %w", adapterConfigFile, err)
		}
	}
	if err != nil {
		err = errors.Join(err, w.close())
	}
	return w, c, err
}

// checkSaved returns an error unless ModulesToSave and the field ensure_weight_tying are valid.
func (c *AdapterOptions) checkSaved() error {
	for _, name := range c.ModulesToSave {
		if name == "" || !utf8.ValidString(name) {
			return fmt.Errorf("modules_to_save has the name %.100q, want the end of a module's name: %w", name, snug.ErrConfig)
		}
	}
	if c.tied() && len(c.ModulesToSave) == 0 {
		return fmt.Errorf("the field %q has the value %.100s without modules_to_save, which asks for adapters that share their parameters: "+
			"not supported: %w", weightTying, c.Other[weightTying], snug.ErrConfig)
	}
	return nil
}

// checkModules returns an error unless modules can be saved beside the adapters of c.
func (c *AdapterOptions) checkModules(modules []Module) error {
	if (len(c.ModulesToSave) > 0) != (len(modules) > 0) {
		return fmt.Errorf("ModulesToSave is %.200q, with %d modules: %w", c.ModulesToSave, len(modules), snug.ErrConfig)
	}
	seen := map[string]bool{}
	for _, m := range modules {
		switch {
		case !utf8.ValidString(m.Name) || !c.savesParam(m.Name):
			return fmt.Errorf("the parameter %.100q is not of ModulesToSave: %w", m.Name, snug.ErrConfig)
		case seen[m.Name]:
			return fmt.Errorf("the parameter %.100q comes twice: %w", m.Name, snug.ErrConfig)
		case !m.Value.DType().IsFloat():
			return fmt.Errorf("the parameter %.100q holds %s, want f32, f16 or bf16: %w", m.Name, m.Value.DType(), snug.ErrDType)
		case m.Value.Len() != (amp.Tensor{Shape: m.Shape}).Len():
			return fmt.Errorf("the parameter %.100q has %d elements, and the shape %v: %w", m.Name, m.Value.Len(), m.Shape, snug.ErrShape)
		}
		seen[m.Name] = true
	}
	if len(modules) == 0 {
		return nil
	}
	stats, err := amp.Measure(func(yield func(string, snug.View) bool) {
		for _, m := range modules {
			if !yield(m.Name, m.Value) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return stats.Err()
}

// LoadModules reads from a folder of adapters the parameters that trained beside them, into the Values of modules,
// which the caller lists with all such parameters of its model. Errors, which name the folder: [snug.ErrCorrupt] for a
// folder that lacks one of them or has it in another shape, [snug.ErrConfig] for a folder that has others, and the
// errors of [LoadAdapters].
func LoadModules(dir string, modules ...Module) error {
	if err := loadModules(openIn(dir), modules); err != nil {
		return fmt.Errorf("qlora: load modules of %q: %w", dir, err)
	}
	return nil
}

func loadModules(open opener, modules []Module) (err error) {
	w, c, err := openModules(open)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	wanted := map[string]bool{}
	for _, m := range modules {
		switch t, found := w.Tensor(adapterPrefix + m.Name); {
		case !found:
			return fmt.Errorf("the parameter %q is missing: %w", m.Name, snug.ErrCorrupt)
		case !slices.Equal(t.Shape, m.Shape):
			return fmt.Errorf("the parameter %q has shape %v, want %v: %w", m.Name, t.Shape, m.Shape, snug.ErrCorrupt)
		}
		if err := w.Load(adapterPrefix+m.Name, m.Value); err != nil {
			return err
		}
		wanted[m.Name] = true
	}
	for _, t := range w.Tensors() {
		if name := strings.TrimPrefix(t.Name, adapterPrefix); c.isSaved(name) && !wanted[name] {
			return fmt.Errorf("the parameter %q was trained beside the adapters, and the model lacks it: %w", name, snug.ErrConfig)
		}
	}
	return nil
}

// inner are parts of the names of tensors in files that are no parameters of ModulesToSave: those of adapters, and PEFT's other names of
// such a parameter.
var inner = []string{".lora_", ".vera_", ".base_layer.", ".modules_to_save.", ".original_module."}

// isSaved reports whether a tensor of a file, without the prefix, is a parameter of ModulesToSave.
func (c *AdapterOptions) isSaved(name string) bool {
	return !slices.ContainsFunc(inner, func(part string) bool { return strings.Contains(name, part) }) && c.savesParam(name)
}
