package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/qlora"
)

// This file has embeddings and heads that a folder of adapters has in place of the base model's: PEFT saves them when they
// train as modules_to_save, when the vocabulary was resized, or when they are targets. Adapters of embeddings and heads are
// added to them when the model is opened.

// tables are the embedding and the head of a folder of adapters.
type tables struct {
	files map[string]string // the names in the folder, by the names of parameters that have their values from there
	also  string            // the name there of the head that is the embedding, if it has both
	vocab int               // rows of the embedding in the base model's folder
	tied  bool              // whether the base model's head is its embedding

	adapters map[string]*qlora.LoRA // of embedding and head, by the names of parameters
	lost     amp.LostUpdates        // by adding these
}

// has reports whether a parameter has values or an adapter from the folder.
func (t *tables) has(name string) bool { return t.files[name] != "" || t.adapters[name] != nil }

// readTables looks for an embedding and a head in the folder of adapters, before there are parameters. Their rows are the
// model's vocabulary. A tied model is untied if the folder has a head of its own, or trained only one of the two, or has an
// adapter of either: PEFT computes with that adapter on its side alone. (Its merge_and_unload adds it to both, because they
// are one matrix there, and warns that the merged model is another one.)
func (m *Model) readTables() error {
	m.tables = tables{vocab: m.config.Vocab, tied: m.config.Tied}
	dir := m.options.AdapterDir
	if dir == "" || gguf.IsFile(dir) { // such a file has no tables
		return nil
	}
	o, list, err := qlora.SavedTensors(dir)
	if err != nil {
		return err
	}
	embedding, head := m.config.layout().body+m.config.embedding(), m.config.layout().head
	shapes, files := map[string][]int{}, map[string]string{}
	for _, t := range list {
		module := strings.TrimSuffix(strings.TrimSuffix(t.Name, ".weight"), ".base_layer")
		name := ""
		switch module[strings.LastIndexByte(module, '.')+1:] {
		case strings.TrimSuffix(m.config.embedding(), ".weight"):
			name = embedding
		case "lm_head":
			name = head
		default:
			continue
		}
		if len(t.Shape) != 2 || t.Shape[1] != m.config.Dim || t.Shape[0] < 1 || t.Shape[0] > maxCount {
			return fmt.Errorf("%s: %s is %v, want rows of the %d elements of the model: %w", dir, t.Name, t.Shape, m.config.Dim, snug.ErrShape)
		}
		shapes[name], files[name] = t.Shape, t.Name
	}
	adapted, err := m.adaptsTables(dir)
	if err != nil {
		return err
	}
	switch {
	case adapted && m.config.Tied:
		m.config.Tied = false
		for _, from := range [][2]string{{embedding, head}, {head, embedding}} { // a copy of a tied matrix is that of both
			if file := files[from[0]]; file != "" && files[from[1]] == "" && !o.SavesModule(strings.TrimSuffix(file, ".weight")) {
				files[from[1]], shapes[from[1]] = file, shapes[from[0]]
			}
		}
	case len(files) > 0:
		if err := m.untie(dir, o, files, embedding, head); err != nil {
			return err
		}
	}
	if len(files) == 0 {
		return nil
	}
	m.tables.files = files
	rows := m.config.Vocab
	for _, shape := range shapes {
		rows = shape[0]
	}
	for _, name := range []string{embedding, head} {
		switch shape, found := shapes[name]; {
		case found && shape[0] != rows:
			return fmt.Errorf("%s: %s has %d rows, and the other of embedding and head %d: %w", dir, files[name], shape[0], rows, snug.ErrShape)
		case !found && rows != m.config.Vocab && (name == embedding || !m.config.Tied):
			return fmt.Errorf("%s has a vocabulary of %d rows, the base model has %d, and there is no %s of that size: save both with PEFT's save_embedding_layers=True: %w",
				dir, rows, m.config.Vocab, name, snug.ErrConfig)
		}
	}
	m.config.Vocab = rows
	return nil
}

// untie decides whether a tied model stays tied. Trained as modules_to_save, embedding and head are copies in PEFT, which
// are apart from then on unless ensure_weight_tying is true. Saved for their size or as targets, they are still one matrix.
func (m *Model) untie(dir string, o qlora.AdapterOptions, files map[string]string, embedding, head string) error {
	if !m.config.Tied {
		return nil
	}
	e, h := files[embedding], files[head]
	stay := string(o.Other[weightTying]) == "true"
	saves := func(name string) bool { return name != "" && o.SavesModule(strings.TrimSuffix(name, ".weight")) }
	switch {
	case stay:
	case e != "" && h != "":
		same, err := sameTables(dir, e, h)
		if err != nil {
			return err
		}
		stay = same
	default:
		stay = !saves(e) && !saves(h)
	}
	m.config.Tied = stay
	if stay {
		if files[embedding] = cmp.Or(e, h); e != "" {
			m.tables.also = h
		}
		delete(files, head)
	}
	return nil
}

// adaptsTables reports whether a folder has an adapter of the embedding or the head.
func (m *Model) adaptsTables(dir string) (bool, error) {
	w, err := amp.OpenWeights(filepath.Join(dir, "adapter_model.safetensors"))
	if err != nil {
		return false, err
	}
	embedding := "." + strings.TrimSuffix(m.config.embedding(), ".weight") + ".lora_embedding_A"
	found := slices.ContainsFunc(w.Tensors(), func(t amp.Tensor) bool {
		return strings.HasSuffix(t.Name, embedding) || strings.HasSuffix(t.Name, ".lm_head.lora_A.weight")
	})
	return found, w.Close()
}

// takeTables takes the adapters of the embedding and the head out of those that were loaded.
func (m *Model) takeTables(dir string, loaded map[string]*qlora.LoRA) error {
	if m.adapters.VeRA != nil {
		return nil
	}
	layout := m.config.layout()
	m.tables.adapters = map[string]*qlora.LoRA{}
	for _, name := range []string{layout.body + m.config.embedding(), layout.head} {
		isHead := name == layout.head
		module := m.adapterName(strings.TrimSuffix(name, ".weight"))
		a := loaded[module]
		if a == nil {
			continue
		}
		rows, dim := a.In, a.Out
		if isHead {
			rows, dim = dim, rows
		}
		switch {
		case a.Embedding == isHead:
			return fmt.Errorf("%s: the adapter of %s is of an embedding: %t, want %t: %w", dir, module, a.Embedding, !isHead, snug.ErrConfig)
		case dim != m.config.Dim:
			return fmt.Errorf("%s: the adapter of %s is for rows of %d elements, the model has %d: %w", dir, module, dim, m.config.Dim, snug.ErrShape)
		case rows != m.config.Vocab:
			return fmt.Errorf("%s: the adapter of %s is for %d rows, the model has %d, and the folder has no table of that size: save it with PEFT's save_embedding_layers=True: %w",
				dir, module, rows, m.config.Vocab, snug.ErrShape)
		}
		m.tables.adapters[name] = a
		delete(loaded, module)
	}
	return nil
}

// foldTables adds the adapters of the embedding and the head to them, and frees these adapters.
func (m *Model) foldTables() error {
	for _, name := range slices.Sorted(maps.Keys(m.tables.adapters)) {
		a := m.tables.adapters[name]
		err := m.index[name].With(true, func(w snug.View) (err error) {
			d, err := qlora.NewDense(w, a.Out, a.In, a.Embedding)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, d.Close()) }()
			lost, err := d.Merge(w, a)
			m.tables.lost.Add(lost)
			return err
		})
		if err := errors.Join(err, a.Close()); err != nil {
			return fmt.Errorf("merging the adapter of %s: %w", name, err)
		}
	}
	return nil
}

// sameTables reports whether two tensors of a folder of adapters are equal.
func sameTables(dir, a, b string) (same bool, err error) {
	w, err := amp.OpenWeights(filepath.Join(dir, "adapter_model.safetensors"))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var x, y amp.Tensor
	for _, t := range w.Tensors() { // which may have wrappers before the names
		if strings.HasSuffix(t.Name, "."+a) {
			x = t
		}
		if strings.HasSuffix(t.Name, "."+b) {
			y = t
		}
	}
	return equal(w, x, y)
}

// modulesIn are the parameters of the base that a folder of adapters has, by their names there.
func (m *Model) modulesIn() (list []qlora.Module) {
	if m.options.AdapterDir == "" {
		return nil
	}
	for i := range m.params {
		p := &m.params[i]
		switch file := m.tables.files[p.Name]; {
		case file != "":
			if p == m.table.Table && m.tables.also != "" {
				list = append(list, qlora.Module{Name: m.tables.also, Shape: p.Shape, Value: p.Value})
			}
			list = append(list, qlora.Module{Name: file, Shape: p.Shape, Value: p.Value})
		case m.saved[p.Name]:
			list = append(list, qlora.Module{Name: m.moduleName(p), Shape: p.Shape, Value: p.Value})
		}
	}
	return append(list, m.beside()...)
}

// saveTables adds the embedding and the head that came from a folder of adapters, or have an adapter from there, to the
// modules of o, so that they are saved.
func (m *Model) saveTables(o *qlora.AdapterOptions) {
	for i := range m.params {
		name := m.params[i].Name
		if !m.tables.has(name) {
			continue
		}
		module := m.adapterName(strings.TrimSuffix(name, ".weight"))
		if !o.SavesModule(module) {
			o.ModulesToSave = append(slices.Clone(o.ModulesToSave), module[strings.LastIndexByte(module, '.')+1:])
		}
	}
	if m.config.Tied && len(m.tables.files) > 0 {
		keepTied(o)
	}
	if len(m.tables.adapters) > 0 { // which are no targets any more
		o.Targets, o.Layers, o.LayersPattern = qlora.Modules{}, nil, nil
	}
}
