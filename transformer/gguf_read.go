package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/qlora"
)

// openGGUF opens the model of a file of llama.cpp's.
func openGGUF(path string, o Options) (_ *Model, err error) {
	f, err := gguf.Open(path)
	if err != nil {
		return nil, err
	}
	m, err := newGGUF(f, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, errors.Join(err, f.Close()))
	}
	return m, nil
}

// newGGUF opens the model of a file, which is closed when the model no longer reads it.
func newGGUF(f *gguf.File, o Options) (*Model, error) {
	config, form, err := configOfGGUF(f)
	if err != nil {
		return nil, err
	}
	if o.keeps(config.Stored) && o.Device != nil && !o.Device.IsCPU() {
		return nil, fmt.Errorf("matrices in blocks of llama.cpp's are for the CPU, and the model is for %s: take Options.Decode or a Base (-full, -base): %w", o.Device.Name(), snug.ErrDevice)
	}
	from := &ggufSource{file: f, form: form, places: map[string]ggufPlace{}}
	stored := map[string]bool{}
	floats := map[string]bool{}
	for _, name := range config.Floats {
		floats[name] = true
	}
	for i := range form.parts {
		p := &form.parts[i]
		for j, name := range p.params {
			from.places[name] = ggufPlace{&form.Tensors[i], p, j}
		}
	}
	if config.Stored != 0 {
		for _, t := range config.tensors(config.layout()) {
			if config.isMatrix(t) && !floats[t.Name] {
				stored[t.Name] = true
			}
		}
	}
	m, err := newModel(config, o, stored)
	if err != nil {
		return nil, err
	}
	from.head, from.table = config.layout().head, config.layout().body+config.embedding()
	return m.complete(func() error {
		return m.load(func() (source, error) { return from, nil })
	})
}

// ggufSource is a file of llama.cpp's.
type ggufSource struct {
	file        *gguf.File
	form        *GGUF
	places      map[string]ggufPlace // of parameters
	head, table string               // parameters; without a place of the head it is the table

	bytes          []byte
	values, turned []float32 // of a piece
}

// held returns about the bytes of a file that is open: its metadata, with what was read to make them until it is collected, and pieces.
func (s *ggufSource) held() int64 {
	const text, copies = 32, 4
	bytes := int64(0)
	for _, p := range s.file.Metadata() {
		if list, is := p.Value.([]string); is {
			for _, one := range list {
				bytes += text + int64(len(one))
			}
		}
	}
	return copies*bytes + 2*4*int64(readPiece)
}

// described returns the description of a file with the tensors of this one, of which some parameters are changed, and with its
// metadata but for those of own.
func (s *ggufSource) described(own []gguf.Pair, changed func(param string) bool) *GGUF {
	g := *s.form
	g.from, g.Metadata, g.Tensors = s, nil, slices.Clone(g.Tensors)
	fine := false
	for i := range g.Tensors {
		t := &g.Tensors[i]
		elements, size := t.Type.Block()
		if elements > 1 && size < elements && slices.ContainsFunc(g.parts[i].params, changed) {
			t.Type, fine = gguf.Q8_0, true
		}
	}
	for _, p := range s.file.Metadata() {
		replaced := slices.ContainsFunc(own, func(o gguf.Pair) bool { return o.Key == p.Key })
		if fine && p.Key == "general.file_type" {
			eight, _ := ggufTypeOf("q8_0")
			p.Value = uint32(eight.number)
		}
		if !replaced && !strings.HasPrefix(p.Key, "split.") { // the copy is one file
			g.Metadata = append(g.Metadata, p)
		}
	}
	return &g
}

// finiteBlocks returns an error for elements that are not finite, or scales of blocks.
func finiteBlocks(t gguf.Type, b []byte, elements, size int) error {
	if elements == 1 {
		return finiteGGUF(t, b)
	}
	_, err := qlora.NewBlocks(t, []int{len(b) / size * elements}, b)
	return err
}

// copyPiece is the number of bytes that are copied at a time.
const copyPiece = 1 << 20

// readPiece is the number of elements that are decoded at a time. Tests lower it.
var readPiece = 1 << 18

// ggufPlace is where a parameter is: a tensor, or a part of one with all experts.
type ggufPlace struct {
	tensor *gguf.Tensor
	part   *ggufPart
	at     int // of the parameters of the tensor
}

// elements returns the elements of the parameter.
func (p *ggufPlace) elements() int { return p.part.rows * p.part.cols }

func (s *ggufSource) Close() error { return s.file.Close() }

// place returns where a parameter is.
func (s *ggufSource) place(p *Param) (ggufPlace, error) {
	at, found := s.places[p.Name]
	if !found && p.Name == s.head {
		at, found = s.places[s.table]
	}
	if !found || at.elements() != p.Len() {
		return at, fmt.Errorf("the file has no parameter %s of %v: %w", p.Name, p.Shape, snug.ErrConfig)
	}
	return at, nil
}

func (s *ggufSource) readAll(q *quantizer, list []*Param) error {
	for _, p := range list {
		if err := s.read(q, p, p.Value); err != nil {
			return err
		}
	}
	return nil
}

func (s *ggufSource) read(_ *quantizer, p *Param, v snug.View) error { return s.readFrom(p, 0, v) }

func (s *ggufSource) splits(_ *Config, p *Param) bool {
	at, err := s.place(p)
	return err == nil && !at.part.transposed
}

// readFrom reads elements of a parameter, some rows at a time.
func (s *ggufSource) readFrom(p *Param, lo int, v snug.View) error {
	at, err := s.place(p)
	if err != nil {
		return err
	}
	rows, cols := v.Len()/at.part.cols, at.part.cols
	step := max(1, readPiece/cols)
	switch {
	case at.part.transposed:
		step = rows
	case at.part.pairs > 0:
		step = max(at.part.pairs, step/at.part.pairs*at.part.pairs) // whole heads
		if at.part.rows == 1 {                                      // a bias
			rows, cols = cols, 1
		}
	}
	straight := v.DType() == snug.F32 && v.Device().IsCPU() && !at.part.transposed && at.part.pairs == 0
	for row := 0; row < rows; row += step {
		n := min(step, rows-row)
		to := part(v, row*cols, n*cols)
		if straight {
			if err := s.decode(&at, lo+row*cols, snug.Host[float32](to)); err != nil {
				return fmt.Errorf("%s: %w", at.tensor.Name, err)
			}
			continue
		}
		s.values = slices.Grow(s.values[:0], n*cols)[:n*cols]
		if err := s.decode(&at, lo+row*cols, s.values); err != nil {
			return fmt.Errorf("%s: %w", at.tensor.Name, err)
		}
		s.arrange(at.part, n, cols)
		if err := amp.Cast(to, snug.ViewOf(s.values)); err != nil {
			return err
		}
	}
	return nil
}

// decode reads elements of a parameter from one on.
func (s *ggufSource) decode(at *ggufPlace, lo int, dst []float32) error {
	n := len(dst)
	t := at.tensor.Type
	size, err := t.Bytes(n)
	if err != nil {
		return err
	}
	offset, err := t.Bytes(at.at*at.elements() + lo)
	if err != nil {
		return err
	}
	s.bytes = slices.Grow(s.bytes[:0], int(size))[:size]
	if err := s.file.ReadAt(at.tensor.Name, s.bytes, offset); err != nil {
		return err
	}
	item, err := t.Bytes(ggufItem)
	if err != nil {
		return err
	}
	items := cpu.Chunks(n, ggufItem)
	d := decoding{kind: t, dst: dst, src: s.bytes, size: int(item), add: at.part.add, errors: make([]error, items)}
	decodeTask.Run(items, d)
	return cmp.Or(d.errors...) // one says enough
}

// decoding is the decoding of rows by several workers.
type decoding struct {
	kind   gguf.Type
	dst    []float32
	src    []byte
	size   int // bytes of an item
	add    float32
	errors []error
}

var decodeTask = cpu.NewTask(func(a *decoding, item int) {
	lo, hi := cpu.Chunk(len(a.dst), ggufItem, item)
	from, to := item*a.size, min((item+1)*a.size, len(a.src))
	dst := a.dst[lo:hi]
	a.errors[item] = a.kind.Decode(dst, a.src[from:to])
	for i, x := range dst {
		if x-x != 0 {
			a.errors[item] = fmt.Errorf("element %d of a part is %v: %w", lo+i, x, snug.ErrCorrupt)
			return
		}
		dst[i] = x - a.add
	}
})

// arrange puts the rows of a piece in the order of the parameter.
func (s *ggufSource) arrange(p *ggufPart, rows, cols int) {
	if !p.transposed && p.pairs == 0 {
		return
	}
	s.turned = slices.Grow(s.turned[:0], len(s.values))[:len(s.values)]
	if p.transposed {
		turn(s.turned, s.values, rows, cols)
	} else {
		for r := range rows {
			copy(s.turned[r*cols:(r+1)*cols], s.values[p.paired(r)*cols:])
		}
	}
	s.values, s.turned = s.turned, s.values
}

// paired returns the row of the file for a row of a parameter of q or k.
func (p *ggufPart) paired(row int) int {
	if p.heads > 0 {
		n := p.pairs / 3 / p.heads
		head, of, at := row/(3*n), row/n%3, row%n
		return (of*p.heads+head)*n + at
	}
	head, at, half := row/p.pairs*p.pairs, row%p.pairs, p.pairs/2
	return head + at%half*2 + at/half
}

// quantized reads a matrix in blocks.
func (s *ggufSource) quantized(_ *quantizer, p *Param, _ *snug.Device) (*qlora.Weight, error) {
	at, err := s.place(p)
	if err != nil {
		return nil, err
	}
	t, rows := at.tensor.Type, at.part.rows
	size, err := t.Bytes(at.elements())
	if err != nil {
		return nil, err
	}
	blocks := make([]byte, size)
	if err := s.file.ReadAt(at.tensor.Name, blocks, int64(at.at)*size); err != nil {
		return nil, err
	}
	if at.part.pairs > 0 {
		row := len(blocks) / rows
		head := make([]byte, at.part.pairs*row)
		for lo := 0; lo < len(blocks); lo += len(head) {
			copy(head, blocks[lo:])
			for r := range at.part.pairs {
				copy(blocks[lo+r*row:lo+(r+1)*row], head[at.part.paired(r)*row:])
			}
		}
	}
	w, err := qlora.NewBlocks(t, []int{rows, at.part.cols}, blocks)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at.tensor.Name, err)
	}
	return w, nil
}
