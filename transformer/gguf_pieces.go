package transformer

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/gguf"
	"github.com/snug-ml/snug/internal/cpu"
)

// This file writes the tensors of a file in pieces: one is read while the one before it is encoded and written.

// ggufPieces is how many pieces are in memory.
const ggufPieces = 2

// ggufPiece is the number of elements that are encoded at a time. Tests lower it.
var ggufPiece = 1 << 22

// ggufRows is a piece of a tensor: elements, or bytes that are copied.
type ggufRows struct {
	tensor gguf.Tensor
	part   *ggufPart
	param  string // "" for none
	values []float32
	bytes  []byte
	copied bool
}

// ggufFeed reads the tensors of a file in their order.
type ggufFeed struct {
	*GGUF
	read    func(name string, lo int, dst []float32) error
	changed func(param string) bool
	turned  []float32

	free, full chan *ggufRows
	stop       chan struct{} // closed when nobody writes what is read
}

// errUnwritten ends a reader whose pieces are not written.
var errUnwritten = errors.New("the file is not written")

// into writes all tensors. It returns when nothing reads any more.
func (r *ggufFeed) into(w *gguf.Writer) error {
	r.free, r.full, r.stop = make(chan *ggufRows, ggufPieces), make(chan *ggufRows, ggufPieces), make(chan struct{})
	for range ggufPieces {
		r.free <- &ggufRows{}
	}
	var reading error
	var failure cpu.Failure
	go func() {
		done := false
		defer close(r.full)
		defer failure.Catch(&done)
		reading = r.all()
		done = true
	}()
	if err := r.write(w); err != nil {
		return err
	}
	failure.Raise()
	return reading
}

// write encodes and writes pieces, until there are no more or one fails.
func (r *ggufFeed) write(w *gguf.Writer) error {
	defer func() {
		close(r.stop)
		for range r.full { // until the reader has ended
		}
	}()
	e := &ggufEncoder{}
	for piece := range r.full {
		if err := e.emit(w, piece); err != nil {
			if piece.param != "" {
				err = fmt.Errorf("%s: %w", piece.param, err)
			}
			return err
		}
		r.free <- piece
	}
	return nil
}

// all reads all tensors.
func (r *ggufFeed) all() error {
	for i, t := range r.Tensors {
		p := &r.parts[i]
		if p.values != nil && r.from != nil {
			if err := r.copy(t, 0, t.Shape[0]); err != nil {
				return err
			}
		} else if p.values != nil {
			piece, err := r.next(t, p, "")
			if err != nil {
				return err
			}
			piece.values = append(piece.values[:0], p.values...)
			r.full <- piece
		}
		for j, param := range p.params {
			if r.from != nil && !r.changed(param) && t.Type == r.from.places[param].tensor.Type {
				if err := r.copy(t, j*p.rows*p.cols, p.rows*p.cols); err != nil {
					return err
				}
				continue
			}
			if err := r.param(t, p, param); err != nil {
				return err
			}
		}
	}
	return nil
}

// next returns a piece whose memory is free.
func (r *ggufFeed) next(t gguf.Tensor, p *ggufPart, param string) (*ggufRows, error) {
	select {
	case piece := <-r.free:
		piece.tensor, piece.part, piece.param, piece.copied = t, p, param, false
		return piece, nil
	case <-r.stop:
		return nil, errUnwritten
	}
}

// param reads a parameter, some rows at a time.
func (r *ggufFeed) param(t gguf.Tensor, p *ggufPart, name string) error {
	rows, cols, step := p.pieces()
	for lo := 0; lo < rows; lo += step {
		piece, err := r.next(t, p, name)
		if err != nil {
			return err
		}
		n := min(step, rows-lo)
		piece.values = slices.Grow(piece.values[:0], n*cols)[:n*cols]
		if err := r.read(name, lo*cols, piece.values); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		r.arrange(piece, n, cols)
		r.full <- piece
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
func (r *ggufFeed) arrange(piece *ggufRows, rows, cols int) {
	p := piece.part
	if !p.transposed && p.pairs == 0 {
		return
	}
	r.turned = slices.Grow(r.turned[:0], len(piece.values))[:len(piece.values)]
	if p.transposed {
		turn(r.turned, piece.values, cols, rows)
	} else {
		for row := range rows { // row i of half j of a head becomes row 2i+j of the head
			to := p.paired(row)
			copy(r.turned[to*cols:(to+1)*cols], piece.values[row*cols:])
		}
	}
	piece.values, r.turned = r.turned, piece.values
}

// copy reads elements of a tensor of a file of llama.cpp's from one on as they are.
func (r *ggufFeed) copy(t gguf.Tensor, lo, n int) error {
	offset, err := t.Type.Bytes(lo)
	if err != nil {
		return err
	}
	left, err := t.Type.Bytes(n)
	if err != nil {
		return err
	}
	elements, block := t.Type.Block()
	for left > 0 {
		piece, err := r.next(t, nil, "")
		if err != nil {
			return err
		}
		size := min(left, int64(max(1, copyPiece/block)*block))
		piece.bytes, piece.copied = slices.Grow(piece.bytes[:0], int(size))[:size], true
		if err := r.from.file.ReadAt(t.Name, piece.bytes, offset); err != nil {
			return err
		}
		if err := finiteBlocks(t.Type, piece.bytes, elements, block); err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
		r.full <- piece
		offset, left = offset+size, left-size
	}
	return nil
}

// ggufEncoder has the bytes of a piece.
type ggufEncoder struct {
	bytes  []byte
	errors []error // of items
}

// encoding is the encoding of rows by several workers.
type encoding struct {
	kind   gguf.Type
	dst    []byte
	src    []float32
	add    float32
	size   int // bytes of an item
	errors []error
}

// ggufItem is the number of elements that a worker encodes at a time: a multiple of all blocks.
const ggufItem = 1 << 15

var encodeTask = cpu.NewTask(func(a *encoding, item int) {
	lo, hi := cpu.Chunk(len(a.src), ggufItem, item)
	dst, src := a.dst[item*a.size:min((item+1)*a.size, len(a.dst))], a.src[lo:hi]
	if i := notFinite(snug.SliceView(src)); i >= 0 {
		a.errors[item] = fmt.Errorf("element %d of a part is not finite: %w", lo+i, snug.ErrNonFinite)
		return
	}
	if a.add != 0 {
		for i := range src {
			src[i] += a.add
		}
	}
	a.errors[item] = cmp.Or(a.kind.Encode(dst, src), finiteGGUF(a.kind, dst))
})

// emit encodes a piece and writes it.
func (e *ggufEncoder) emit(w *gguf.Writer, piece *ggufRows) error {
	t, values := piece.tensor, piece.values
	if piece.copied {
		return w.Write(t.Name, piece.bytes)
	}
	n, err := t.Type.Bytes(len(values))
	if err != nil {
		return err
	}
	item, err := t.Type.Bytes(ggufItem)
	if err != nil {
		return err
	}
	items := cpu.Chunks(len(values), ggufItem)
	e.bytes = slices.Grow(e.bytes[:0], int(n))[:n]
	e.errors = slices.Grow(e.errors[:0], items)[:items]
	encodeTask.Run(items, encoding{kind: t.Type, dst: e.bytes, src: values, add: piece.part.add, size: int(item), errors: e.errors})
	if err := cmp.Or(e.errors...); err != nil { // one says enough
		return err
	}
	return w.Write(t.Name, e.bytes)
}

// finiteGGUF returns an error for an element of a type in floats that is not finite, in the bytes of a file.
func finiteGGUF(t gguf.Type, b []byte) error {
	exponent := map[gguf.Type]uint16{gguf.F32: 0x7F80, gguf.BF16: 0x7F80, gguf.F16: 0x7C00}[t] // in the last two bytes
	if exponent == 0 {
		return nil
	}
	_, size := t.Block()
	for i := size; i <= len(b); i += size {
		if binary.LittleEndian.Uint16(b[i-2:])&exponent == exponent {
			return fmt.Errorf("element %d of a part is not finite in %s: %w", i/size-1, t, snug.ErrNonFinite)
		}
	}
	return nil
}
