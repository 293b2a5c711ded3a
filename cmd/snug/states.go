package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/optim"
	"github.com/snug-ml/snug/internal/state"
)

// fields reads little-endian values until an error.
type fields struct {
	r   io.Reader
	err error
}

func field[T uint32 | uint64](f *fields) (v T) {
	if f.err == nil {
		f.err = binary.Read(f.r, binary.LittleEndian, &v)
	}
	return v
}

// name reads a length and as many bytes.
func (f *fields) name() string {
	n := field[uint32](f)
	if f.err == nil && n > state.MaxName {
		f.err = fmt.Errorf("a name of %d bytes: %w", n, snug.ErrCorrupt)
	}
	if f.err != nil {
		return ""
	}
	b := make([]byte, n)
	_, f.err = io.ReadFull(f.r, b)
	return string(b)
}

// count reads a number of elements.
func (f *fields) count() int {
	n := field[uint64](f)
	if f.err == nil && n > math.MaxInt64/8 || n > math.MaxInt {
		f.err = fmt.Errorf("a parameter of %d elements: %w", n, snug.ErrCorrupt)
		return 0
	}
	return int(n)
}

// readMasters lists the parameters of amp's master weights: since version 2 the form and a
// seed, then how many there are, and of each the name, its elements, and what is kept of
// them.
func readMasters(r io.Reader, c *content) error {
	f := &fields{r: r}
	form := uint32(0)
	if c.Version > 1 {
		form = field[uint32](f)
		field[uint64](f)
	}
	kinds := []struct {
		name string
		size int64
	}{{"f32", 4}, {"lower halves of f32", 2}, {"nothing", 0}}
	if f.err == nil && (c.Version > 2 || form >= uint32(len(kinds))) {
		return fmt.Errorf("version %d with form %d, which this program does not know: %w", c.Version, form, snug.ErrCorrupt)
	}
	count := field[uint32](f)
	for i := uint32(0); i < count && f.err == nil; i++ {
		name, n := f.name(), f.count()
		kind := kinds[form]
		if kind.size == 0 {
			field[uint64](f) // updates
		}
		e := entry{Name: name, DType: kind.name, Shape: []int{n}, Bytes: int64(n) * kind.size}
		if f.err == nil {
			_, f.err = io.CopyN(io.Discard, r, e.Bytes)
		}
		c.Entries = append(c.Entries, e)
	}
	return f.err
}

// readOptimizer lists the parameters of an optimizer of quant8, whose file header.go of that
// package describes. c.Bytes is the size of the file.
func readOptimizer(r io.Reader, c *content) error {
	f := &fields{r: r}
	length := field[uint32](f)
	if f.err != nil {
		return f.err
	}
	var header bytes.Buffer
	if _, err := io.CopyN(&header, r, int64(length)); err != nil {
		return err
	}
	if c.Version < 1 || c.Version > 6 {
		return fmt.Errorf("version %d, which this program does not know: %w", c.Version, snug.ErrCorrupt)
	}
	f = &fields{r: &header}
	bits, block := field[uint32](f), field[uint32](f)
	field[uint64](f) // elements of a chunk
	small := field[uint64](f)
	field[uint64](f) // hash of the maps
	step := field[uint64](f)
	field[uint32](f) // learning rate
	count := field[uint32](f)
	var params []savedParam
	for i := uint32(0); i < count && f.err == nil; i++ {
		params = append(params, readParam(f, c.Version, bits, small))
	}
	name := "AdamW"
	if c.Version >= 2 && f.err == nil {
		_, f.err = io.CopyN(io.Discard, &header, 2*256*4) // the maps
	}
	if c.Version >= 4 {
		name = f.name()
	}
	if f.err != nil {
		return f.err
	}
	state := c.Bytes - int64(state.MagicLen) - 4 - 4 - int64(length) - 2*crc32c.Size
	if err := sizeParams(params, name, int(block), state); err != nil {
		return err
	}
	for _, p := range params {
		c.Entries = append(c.Entries, p.entry)
	}
	c.Note = fmt.Sprintf("%s, %d bits in blocks of %d, after step %d, %s", printable(name), bits, block, step, c.Note)
	return nil
}

// savedParam is a parameter of an optimizer, or the shard of it that is there.
type savedParam struct {
	entry
	n, rows, cols int
	bits          int
}

func readParam(f *fields, version, bits uint32, small uint64) savedParam {
	p := savedParam{entry: entry{Name: f.name()}}
	total := f.count()
	p.n = total
	if version >= 3 {
		f.count() // the first that is here
		p.n = f.count()
	}
	if uint64(total) < small {
		bits = 32
	}
	if version >= 4 {
		bits = field[uint32](f)
	}
	p.bits = int(bits)
	p.DType, p.Shape = fmt.Sprintf("%d bits", bits), []int{p.n}
	if version >= 5 {
		if p.rows, p.cols = f.count(), f.count(); p.rows > 0 && p.cols > 0 {
			p.Shape = []int{p.rows, p.cols}
		}
	}
	if version >= 6 { // which chunks are updated in the step
		if n := field[uint32](f); f.err == nil {
			_, f.err = io.CopyN(io.Discard, f.r, int64(n))
		}
	}
	return p
}

// sizeParams sets the bytes of the parameters. The file does not say how many states its
// optimizer has for an element; the bytes of all of them do.
func sizeParams(params []savedParam, optimizer string, block int, total int64) error {
	if len(params) == 0 && total == 0 {
		return nil
	}
	for states := range optim.MaxStates + 1 {
		sum := int64(0)
		for i := range params {
			p := &params[i]
			p.Bytes = p.bytes(states, strings.HasPrefix(optimizer, "Adafactor"), block)
			if sum += p.Bytes; p.Bytes < 0 || sum > total {
				sum = -1
				break
			}
		}
		if sum == total {
			return nil
		}
	}
	return fmt.Errorf("%d bytes of state, which is not what %d parameters of %s take: %w", total, len(params), optimizer, snug.ErrCorrupt)
}

// bytes returns the size of the states of an element's number: numbers of 32 or 16 bits, or
// codes and an absmax of 4 bytes for each block. Adafactor has factors of the rows and columns
// of a matrix in the place of the last state. It is negative where that is no number.
func (p *savedParam) bytes(states int, factored bool, block int) int64 {
	n, sum := int64(p.n), int64(0)
	if factored && p.rows > 0 && p.cols > 0 {
		states--
		sum = 4 * (int64(p.rows) + int64(p.cols))
	}
	if states < 0 || n > math.MaxInt64/64 || sum > math.MaxInt64/4 {
		return -1
	}
	switch {
	case p.bits == 32 || p.bits == 16:
		return sum + int64(states)*int64(p.bits/8)*n
	case (p.bits == 8 || p.bits == 4) && block > 0:
		blocks := (n + int64(block) - 1) / int64(block)
		return sum + int64(states)*(4*blocks+(int64(p.bits)*n+7)/8)
	}
	return -1
}
