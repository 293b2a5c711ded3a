package transformer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/cpu"
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
// appears at path as a whole. It takes, besides what Save takes, 16 MiB of a matrix in float32, twice where its rows change their
// order, and a whole matrix of GPT-2. With Options.SaveOnly no more than a matrix is in memory.
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
	name  string
	value snug.View // of the parameter of that name
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
		w, err := v.merger.value(p)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		v.name, v.value = name, w
	}
	return amp.Cast(snug.ViewOf(dst), part(v.value, lo, len(dst)))
}

// ggufPiece is the number of elements that are encoded at a time. Tests lower it.
var ggufPiece = 1 << 22

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
	e := &ggufEncoder{}
	for i, t := range g.Tensors {
		p := &g.parts[i]
		if p.values != nil && g.from != nil {
			if err := g.from.copy(w, t, 0, t.Shape[0]); err != nil {
				return err
			}
		} else if p.values != nil {
			if err := e.emit(w, t, p, p.values); err != nil {
				return err
			}
		}
		for j, param := range p.params {
			if g.from != nil && !changed(param) && t.Type == g.from.places[param].tensor.Type {
				if err := g.from.copy(w, t, j*p.rows*p.cols, p.rows*p.cols); err != nil {
					return err
				}
				continue
			}
			if err := e.param(w, t, p, param, read); err != nil {
				return fmt.Errorf("%s: %w", param, err)
			}
		}
	}
	return nil
}

// ggufEncoder has the memory of a piece of a parameter.
type ggufEncoder struct {
	values, turned []float32
	bytes          []byte
}

// param writes a parameter, some rows at a time.
func (e *ggufEncoder) param(w *gguf.Writer, t gguf.Tensor, p *ggufPart, name string, read func(string, int, []float32) error) error {
	rows, cols, step := p.pieces()
	for lo := 0; lo < rows; lo += step {
		n := min(step, rows-lo)
		e.values = slices.Grow(e.values[:0], n*cols)[:n*cols]
		if err := read(name, lo*cols, e.values); err != nil {
			return err
		}
		e.arrange(p, n, cols)
		if err := e.emit(w, t, p, e.values); err != nil {
			return err
		}
	}
	return nil
}

// pieces returns the rows of a parameter, their elements, and how many rows are encoded at a time.
func (p *ggufPart) pieces() (rows, cols, step int) {
	rows, cols, step = p.rows, p.cols, max(1, ggufPiece/p.cols)
	if p.pairs > 0 {
		step = max(p.pairs, step/p.pairs*p.pairs) // whole heads
	}
	if p.pairs > 0 && rows == 1 { // a bias
		rows, cols = cols, 1
	}
	if p.transposed {
		step = rows
	}
	return rows, cols, step
}

// arrange puts the rows of a piece in the order of the file.
func (e *ggufEncoder) arrange(p *ggufPart, rows, cols int) {
	if !p.transposed && p.pairs == 0 {
		return
	}
	e.turned = slices.Grow(e.turned[:0], len(e.values))[:len(e.values)]
	if p.transposed {
		turn(e.turned, e.values, cols, rows)
	} else {
		for r := range rows { // row i of half j of a head becomes row 2i+j of the head
			to := p.paired(r)
			copy(e.turned[to*cols:(to+1)*cols], e.values[r*cols:])
		}
	}
	e.values, e.turned = e.turned, e.values
}

// encoding is the encoding of rows by several workers.
type encoding struct {
	kind   gguf.Type
	dst    []byte
	src    []float32
	size   int // bytes of an item
	errors []error
}

// ggufItem is the number of elements that a worker encodes at a time: a multiple of all blocks.
const ggufItem = 1 << 15

var encodeTask = cpu.NewTask(func(a *encoding, item int) {
	lo, hi := cpu.Chunk(len(a.src), ggufItem, item)
	from, to := item*a.size, min((item+1)*a.size, len(a.dst))
	a.errors[item] = a.kind.Encode(a.dst[from:to], a.src[lo:hi])
})

// emit encodes values and writes them.
func (e *ggufEncoder) emit(w *gguf.Writer, t gguf.Tensor, p *ggufPart, values []float32) error {
	for i, x := range values {
		if x-x != 0 {
			return fmt.Errorf("an element near %d is not finite: %w", i, snug.ErrNonFinite)
		}
		if p.add != 0 {
			values[i] = x + p.add
		}
	}
	n, err := t.Type.Bytes(len(values))
	if err != nil {
		return err
	}
	item, err := t.Type.Bytes(ggufItem)
	if err != nil {
		return err
	}
	e.bytes = slices.Grow(e.bytes[:0], int(n))[:n]
	items := cpu.Chunks(len(values), ggufItem)
	a := encoding{kind: t.Type, dst: e.bytes, src: values, size: int(item), errors: make([]error, items)}
	encodeTask.Run(items, a)
	if err := errors.Join(a.errors...); err != nil {
		return err
	}
	if err := finiteGGUF(t.Type, e.bytes); err != nil {
		return err
	}
	return w.Write(t.Name, e.bytes)
}

// finiteGGUF returns an error for elements that became infinite.
func finiteGGUF(t gguf.Type, b []byte) error {
	top := map[gguf.Type]byte{gguf.F16: 0x7C, gguf.BF16: 0x7F}[t]
	if top == 0 {
		return nil
	}
	for i := 0; i+1 < len(b); i += 2 {
		if b[i+1]&0x7F == top && (t == gguf.F16 || b[i]&0x80 != 0) || t == gguf.F16 && b[i+1]&0x7C == 0x7C {
			return fmt.Errorf("an element is beyond the largest number of %s: %w", t, snug.ErrNonFinite)
		}
	}
	return nil
}
