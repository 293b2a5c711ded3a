package transformer

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/fault"
)

// GGUFOptions say what a file of llama.cpp's holds besides a model's parameters.
type GGUFOptions struct {
	// Type is one of the GGUFTypes; empty is the one of the model's type, which keeps all matrices as they are. Of a model that was
	// opened with Options.SaveOnly from a file of llama.cpp's, empty copies what no adapter changes, and the metadata. The others keep
	// their types, but those of fewer than 8 bits become q8_0: the elements are numbers of the type, most updates are less than
	// half the distance to the next one, and rounding would undo them.
	Type string
	// Metadata follow those of the architecture: the name of the model, and its tokenizer. They replace copied ones.
	Metadata []gguf.Pair
	// New wants no file at the path, neither at the call nor when the file is complete, see [gguf.CreateNew].
	New bool
}

// SaveGGUF writes a file of llama.cpp's, see [Config.GGUF]: of the weights that [Model.Save] writes, with adapters merged. The file
// appears at path as a whole. It takes, besides what Save takes, two pieces of a matrix, each of 16 MiB in float32, one more where rows
// change their order, and two whole matrices of GPT-2. With Options.SaveOnly a matrix that an adapter changes is in memory, and of the
// others only pieces.
//
// Errors are those of Config.GGUF, of Save and of [gguf.Create], and [snug.ErrNonFinite] for an element that is not finite, or not
// in the type of the file; then there is no file at path, or the one that was there. While it is written, the file is beside path, see
// [gguf.Create].
func (m *Model) SaveGGUF(path string, o GGUFOptions) (err error) {
	defer fault.Named(&err, "transformer: SaveGGUF")
	if err := m.opened(); err != nil {
		return err
	}
	g, err := m.describeGGUF(o)
	if err != nil {
		return err
	}
	_, err = m.merged(func(merge *merger) error {
		v := &modelValues{merger: merge}
		err := g.write(path, o, v.read, m.changed)
		m.lost = m.lostBy(merge)
		return err
	})
	return err
}

// describeGGUF describes the file that SaveGGUF writes.
func (m *Model) describeGGUF(o GGUFOptions) (*GGUF, error) {
	if from := m.sourceGGUF(); from != nil && o.Type == "" {
		return from.described(o.Metadata, m.changed), nil
	}
	c := m.config
	c.DType = m.dtype
	return c.describe(o.Type)
}

// modelValues reads parameters of a model.
type modelValues struct {
	*merger
	name   string
	value  snug.View // of the parameter of that name
	staged snug.View // of a piece
}

func (v *modelValues) read(name string, lo int, dst []float32) error {
	if err := v.ended(); err != nil {
		return err
	}
	if v.name != name {
		p := v.index[name]
		if p == nil {
			return fmt.Errorf("the model has no parameter %s: %w", name, snug.ErrConfig)
		}
		if v.folder.inPieces(p) {
			return v.folder.piece(p, lo, dst, &v.staged)
		}
		w, err := v.merger.value(p)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		v.name, v.value = name, w
	}
	return amp.Cast(snug.ViewOf(dst), part(v.value, lo, len(dst)))
}

// sourceGGUF returns the file of llama.cpp's in which the matrices of the model are, nil if there is none.
func (m *Model) sourceGGUF() *ggufSource {
	switch {
	case m.folder == nil:
		return nil
	case m.folder.before != nil:
		return m.folder.before.sourceGGUF()
	}
	s, _ := m.folder.from.(*ggufSource)
	return s
}

// changed reports whether a parameter has other values than its source.
func (m *Model) changed(param string) bool {
	p := m.index[param]
	l := m.matrices[p]
	if m.folder != nil && m.folder.before != nil && m.folder.before.changed(param) {
		return true
	}
	return p == nil || l != nil && l.Adapter != nil || m.saved[p.Name] || m.tables.has(p.Name)
}

// write writes a file. read reads elements of a parameter from one on, and changed says which are not copied.
func (g *GGUF) write(path string, o GGUFOptions, read func(name string, lo int, dst []float32) error, changed func(param string) bool) (err error) {
	create := gguf.Create
	if o.New {
		create = gguf.CreateNew
	}
	w, err := create(path, slices.Concat(g.Metadata, o.Metadata), g.Tensors)
	if err != nil {
		return err
	}
	defer func() {
		if closing := w.Close(); err == nil {
			err = closing
		}
	}()
	return (&ggufFeed{GGUF: g, read: read, changed: changed}).into(w)
}
