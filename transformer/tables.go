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
	"github.com/snug-ml/snug/qlora"
)

// This file has embeddings and heads that a folder of adapters has in place of the base model's: PEFT saves them when they
// train as modules_to_save, when the vocabulary was resized, or when they are targets.

// tables are the embedding and the head of a folder of adapters.
type tables struct {
	files map[string]string // the names in the folder, by the names of parameters that have their values from there
	also  string            // the name there of the head that is the embedding, if it has both
	vocab int               // rows of the embedding in the base model's folder
	tied  bool              // whether the base model's head is its embedding
}

// readTables looks for an embedding and a head in the folder of adapters, before there are parameters. Their rows are the
// model's vocabulary. A tied model is untied if the folder has a head of its own, or trained only one of the two.
func (m *Model) readTables() error {
	m.tables = tables{vocab: m.config.Vocab, tied: m.config.Tied}
	dir := m.options.AdapterDir
	if dir == "" {
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
	if len(files) == 0 {
		return nil
	}
	if err := m.untie(dir, o, files, embedding, head); err != nil {
		return err
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
			if p == m.table && m.tables.also != "" {
				list = append(list, qlora.Module{Name: m.tables.also, Shape: p.Shape, Value: p.Value})
			}
			list = append(list, qlora.Module{Name: file, Shape: p.Shape, Value: p.Value})
		case m.saved[p.Name]:
			list = append(list, qlora.Module{Name: m.moduleName(p), Shape: p.Shape, Value: p.Value})
		}
	}
	return list
}

// saveTables adds the embedding and the head that came from a folder of adapters to the modules of o, so that they are saved.
func (m *Model) saveTables(o *qlora.AdapterOptions) {
	for _, name := range slices.Sorted(maps.Keys(m.tables.files)) {
		module := m.adapterName(strings.TrimSuffix(name, ".weight"))
		if !o.SavesModule(module) {
			o.ModulesToSave = append(slices.Clone(o.ModulesToSave), module[strings.LastIndexByte(module, '.')+1:])
		}
	}
	if m.config.Tied && len(m.tables.files) > 0 {
		keepTied(o)
	}
}
