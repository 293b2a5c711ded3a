package train

import (
	"fmt"
	"io"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/state"
)

// buffers are the values of a [Buffered] model, with a copy to which they can be restored.
type buffers struct {
	list []buffer
	sums []float64 // for the mean over ranks: room for all elements; empty for one rank
}

type buffer struct {
	name  string
	value snug.View // float32, in the model
	kept  []float32 // the copy
}

const buffersPart = "buffers"

// collectBuffers lists the buffers of the model, and makes room for the copies. The error wraps [snug.ErrDType].
func (t *Trainer[B]) collectBuffers() error {
	m, has := t.model.(Buffered)
	if !has {
		return nil
	}
	n := 0
	for name, v := range m.Buffers() {
		if v.DType() != snug.F32 {
			return fmt.Errorf("buffer %q holds %s, want f32: %w", name, v.DType(), snug.ErrDType)
		}
		t.buffers.list = append(t.buffers.list, buffer{name, v, make([]float32, v.Len())})
		n += v.Len()
	}
	if t.ranks.Size() > 1 {
		t.buffers.sums = make([]float64, n)
	}
	return nil
}

// each calls do for each buffer up to the first error.
func (b *buffers) each(do func(b buffer) error) error {
	for _, v := range b.list {
		if err := do(v); err != nil {
			return fmt.Errorf("buffer %q: %w", v.name, err)
		}
	}
	return nil
}

// keep copies the values, for restore.
func (b *buffers) keep() error {
	return b.each(func(b buffer) error { return snug.Copy(snug.ViewOf(b.kept), b.value) })
}

// restore sets the values to those of the last keep.
func (b *buffers) restore() error {
	return b.each(func(b buffer) error { return snug.Copy(b.value, snug.ViewOf(b.kept)) })
}

// copies returns the same buffers with a second copy of the values, 4 bytes an element, that keep of b does not change.
func (b *buffers) copies() (c buffers, err error) {
	for _, v := range b.list {
		v.kept = make([]float32, len(v.kept))
		c.list = append(c.list, v)
	}
	return c, c.keep()
}

// mean sets the buffers of all ranks to their mean, with the same bits on all ranks. The copies of keep stay as they are.
func (b *buffers) mean(r *ranks) error {
	if len(b.sums) == 0 {
		return nil
	}
	at, host := 0, []float32(nil)
	err := b.each(func(v buffer) error {
		host = slices.Grow(host[:0], v.value.Len())[:v.value.Len()]
		err := snug.Copy(snug.ViewOf(host), v.value)
		for _, x := range host {
			b.sums[at] = float64(x)
			at++
		}
		return err
	})
	if err == nil {
		err = r.Sum(b.sums)
	}
	if err != nil {
		return err
	}
	at = 0
	return b.each(func(v buffer) error {
		host = host[:0]
		for range v.value.Len() {
			host = append(host, float32(b.sums[at]/float64(r.Size())))
			at++
		}
		return snug.Copy(v.value, snug.ViewOf(host))
	})
}

// parts returns the part of a checkpoint that holds the buffers, none for a model without them.
func (b *buffers) parts() []savedPart {
	if len(b.list) == 0 {
		return nil
	}
	return []savedPart{{buffersPart, b.write, b.read}}
}

// header returns the names and lengths that the part begins with, and the bytes of the values.
func (b *buffers) header() (list []state.Buffer, bytes int64) {
	for _, v := range b.list {
		list = append(list, state.Buffer{Name: v.name, N: uint64(len(v.kept))})
		bytes += 4 * int64(len(v.kept))
	}
	return list, bytes
}

// write writes the values to a checkpoint.
func (b *buffers) write(w io.Writer) error {
	if err := b.keep(); err != nil {
		return err
	}
	list, bytes := b.header()
	e := state.NewEncoder(w, state.BuffersMagic)
	e.PutBuffers(list)
	e.Data(bytes)
	for _, v := range b.list {
		e.Put(v.kept)
	}
	_, err := e.Finish()
	return err
}

// read reads the part. It changes the buffers of the model only after all of it is read and verified; the error otherwise wraps
// [snug.ErrCorrupt], or comes from r.
func (b *buffers) read(r io.Reader) error {
	list, bytes := b.header()
	d := state.NewDecoder(r, state.BuffersMagic)
	if found := d.GetBuffers(); d.Err == nil && !slices.Equal(found, list) {
		d.Corrupt("buffers %v, want %v", found, list)
	}
	d.Data(bytes)
	for _, v := range b.list {
		d.Get(v.kept)
	}
	if _, err := d.Finish(); err != nil {
		return err
	}
	return b.restore()
}
