package transformer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/fault"
	"github.com/snug-ml/snug/qlora"
)

// This file has PEFT's modules_to_save: embeddings, the head and norms that train as a whole beside adapters. The model
// trains its own parameters, where PEFT trains copies.

// weightTying is PEFT's field for tied weights that stay tied when modules_to_save names one of them.
const weightTying = "ensure_weight_tying"

// ModulesToSave returns the parameters that train beside adapters with AdapterOptions.ModulesToSave, by their published
// names. The error wraps [snug.ErrConfig] for a Config that is not valid, for a name that no module has, and for one
// that is of a matrix of the layers or of a module with parts, such as a whole layer.
func (c *Config) ModulesToSave(names []string) (_ []amp.Tensor, err error) {
	defer fault.Named(&err, "transformer: ModulesToSave")
	if err := c.check(); err != nil {
		return nil, err
	}
	o := qlora.AdapterOptions{ModulesToSave: names}
	return c.tensorsToSave(c.tensors(c.layout()), &o, func(module string) string { return module })
}

// tensorsToSave returns the parameters of the modules that o names by PEFT's names of them. For a tied head it sets the
// field of o that keeps it tied.
func (c *Config) tensorsToSave(list []amp.Tensor, o *qlora.AdapterOptions, nameOf func(module string) string) (saved []amp.Tensor, err error) {
	if slices.Contains(o.ModulesToSave, "") {
		return nil, fmt.Errorf("modules_to_save has an empty name, want the end of a module's name: %w", snug.ErrConfig)
	}
	table := strings.TrimSuffix(c.layout().body+c.embedding(), ".weight")
	if c.Tied && (o.SavesModule(nameOf(table)) || o.SavesModule(nameOf("lm_head"))) {
		if c.family().untied {
			return nil, fmt.Errorf("modules_to_save has the tied embedding of %s, which PEFT would save untied: %w", c.Family, snug.ErrConfig)
		}
		keepTied(o)
	}
	found := map[string]bool{}
	for i, t := range list {
		module := nameOf(t.Name[:strings.LastIndexByte(t.Name, '.')])
		for _, name := range o.ModulesToSave {
			one := qlora.AdapterOptions{ModulesToSave: []string{name}, Other: o.Other}
			for outer := module; outer != "" && err == nil; outer = outer[:max(0, strings.LastIndexByte(outer, '.'))] {
				if outer != module && one.SavesModule(outer) {
					err = fmt.Errorf("modules_to_save has %q, which is of the module %s with several parts: want embeddings, the head or norms: %w", name, outer, snug.ErrConfig)
				}
			}
			switch {
			case err != nil:
				return nil, err
			case !one.SavesModule(module):
				continue
			case c.isMatrix(t) || strings.HasSuffix(t.Name, ".bias") && len(list[i-1].Shape) == 2: // a bias follows its matrix
				return nil, fmt.Errorf("modules_to_save has %q, which is of %s, a matrix of a layer: want embeddings, the head or norms: %w", name, module, snug.ErrConfig)
			}
			if found[name] = true; len(saved) == 0 || saved[len(saved)-1].Name != t.Name {
				saved = append(saved, t)
			}
		}
	}
	for _, name := range o.ModulesToSave {
		if !found[name] {
			return nil, fmt.Errorf("modules_to_save has %.100q, which no module of the model ends in: %w", name, snug.ErrConfig)
		}
	}
	return saved, nil
}

// keepTied sets the field that keeps embedding and head one matrix.
func keepTied(o *qlora.AdapterOptions) {
	o.Other = maps.Clone(o.Other)
	if o.Other == nil {
		o.Other = map[string]json.RawMessage{}
	}
	o.Other[weightTying] = json.RawMessage("true")
}

// chooseSaved sets the parameters of the base that train.
func (m *Model) chooseSaved() error {
	own := m.adapters
	own.ModulesToSave = slices.DeleteFunc(slices.Clone(own.ModulesToSave), func(name string) bool {
		return slices.ContainsFunc(m.options.Beside, func(b qlora.Module) bool { return name == m.moduleBeside(b.Name) })
	})
	if len(own.ModulesToSave) == 0 {
		return nil
	}
	list, err := m.config.tensorsToSave(m.config.tensors(m.config.layout()), &own, m.adapterName)
	m.adapters.Other = own.Other
	m.saved = make(map[string]bool, len(list))
	for _, t := range list {
		m.saved[t.Name] = true
	}
	return err
}

// savedModules returns the parameters of the base that are saved beside adapters, by PEFT's names.
func (m *Model) savedModules() (list []qlora.Module) {
	for i := range m.params {
		p := &m.params[i]
		if !m.saved[p.Name] && !m.tables.has(p.Name) {
			continue
		}
		module := qlora.Module{Name: m.moduleName(p), Shape: p.Shape, Value: p.Value}
		if list = append(list, module); m.config.Tied && p == m.table.Table {
			module.Name = m.adapterName("lm_head") + ".weight"
			list = append(list, module)
		}
	}
	return append(list, m.beside()...)
}

// beside returns those of Options.Beside that are of ModulesToSave, by PEFT's names.
func (m *Model) beside() (list []qlora.Module) {
	for _, b := range m.options.Beside {
		if !m.adapters.SavesModule(m.moduleBeside(b.Name)) {
			continue
		}
		if w := wholes[m.whole]; w != nil && m.adapterNames == w.layouts[1] { // as modules are named in memory
			b.Name = "model." + b.Name
		}
		list = append(list, b)
	}
	return list
}

// saveBeside makes the modules of Options.Beside some of ModulesToSave.
func (m *Model) saveBeside() {
	for _, b := range m.options.Beside {
		if module := m.moduleBeside(b.Name); !slices.Contains(m.adapters.ModulesToSave, module) {
			m.adapters.ModulesToSave = append(slices.Clone(m.adapters.ModulesToSave), module)
		}
	}
}

// moduleBeside returns the part of the whole model that a parameter of Options.Beside is of.
func (m *Model) moduleBeside(name string) string {
	if w := wholes[m.whole]; w != nil {
		for _, outer := range w.projectors {
			if rest, is := strings.CutPrefix(name, outer); is {
				part, _, _ := strings.Cut(rest, ".")
				return outer + part
			}
		}
	}
	part, _, _ := strings.Cut(name, ".")
	return part
}

// moduleName returns PEFT's name of a parameter of the base.
func (m *Model) moduleName(p *Param) string {
	dot := strings.LastIndexByte(p.Name, '.')
	return m.adapterName(p.Name[:dot]) + p.Name[dot:]
}
