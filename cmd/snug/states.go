package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/snug-ml/snug"
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
// package describes. The bytes of an entry are not told by the header.
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
	for i := uint32(0); i < count && f.err == nil; i++ {
		p := optimizerEntry(f, c.Version, bits, small)
		c.Entries = append(c.Entries, p)
	}
	c.Note = fmt.Sprintf("%d bits in blocks of %d, after step %d, %s", bits, block, step, c.Note)
	return f.err
}

func optimizerEntry(f *fields, version, bits uint32, small uint64) entry {
	e := entry{Name: f.name()}
	total := f.count()
	n := total
	if version >= 3 {
		f.count() // the first that is here
		n = f.count()
	}
	if uint64(total) < small {
		bits = 32
	}
	if version >= 4 {
		bits = field[uint32](f)
	}
	e.DType, e.Shape = fmt.Sprintf("%d bits", bits), []int{n}
	if version >= 5 {
		if rows, cols := f.count(), f.count(); rows > 0 && cols > 0 {
			e.Shape = []int{rows, cols}
		}
	}
	if version >= 6 { // a bit for every chunk, whether it is updated in the step
		if n := field[uint32](f); f.err == nil {
			_, f.err = io.CopyN(io.Discard, f.r, int64(n))
		}
	}
	return e
}
