package transformer

import (
	"errors"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/qlora"
)

// This file has models that leave their matrices in the folder of Open, with Options.SaveOnly or Options.Stream.

// folder is the folder of a model that leaves its matrices there.
type folder struct {
	m      *Model
	from   source
	read   *quantizer // with SaveOnly, while the model is saved, it quantizes; else nil until it is used
	before *merger    // of the model with Options.Before, in place of the files

	buffer snug.View // the matrix in use
	used   *Param    // in buffer, nil for none
	kept   map[*Param]snug.View
	filled map[*Param]bool // the matrices of kept that were read
	listed bool            // kept has what Options.Stream allows
}

// checkFolder checks the options that leave matrices in the folder.
func (m *Model) checkFolder() error {
	o := &m.options
	switch {
	case o.Stream < 0:
		return fmt.Errorf("the option Stream is %d, want 0 or more: %w", o.Stream, snug.ErrConfig)
	case !o.SaveOnly && len(o.Before) > 0:
		return fmt.Errorf("the option Before wants SaveOnly: %w", snug.ErrConfig)
	case len(o.Before) > 0 && o.AdapterDir == "":
		return fmt.Errorf("the option Before wants an AdapterDir, which comes last: %w", snug.ErrConfig)
	case !o.SaveOnly && o.Stream == 0:
		return nil
	case o.SaveOnly && o.Stream > 0:
		return fmt.Errorf("both SaveOnly and Stream are set, want one: %w", snug.ErrConfig)
	case o.Pages != nil || o.Adapter != nil:
		return fmt.Errorf("the options SaveOnly and Stream go with neither Pages nor a fresh Adapter: %w", snug.ErrConfig)
	case !m.dev.IsCPU():
		return fmt.Errorf("the options SaveOnly and Stream are for the CPU, and the model is on %s: %w", m.dev.Name(), snug.ErrDevice)
	}
	m.folder = &folder{m: m, kept: map[*Param]snug.View{}, filled: map[*Param]bool{}}
	return nil
}

// leaves reports whether a parameter in floats stays in the folder: a matrix whose values are there as they are used. Learned
// positions are in use beside the embedding, so that Stream has them in memory.
func (m *Model) leaves(t amp.Tensor) bool {
	if m.folder == nil || len(t.Shape) != 2 || m.config.isHeadNorm(t.Name) || m.saved[t.Name] || m.tables.has(t.Name) || m.quantizes(t) {
		return false
	}
	return m.options.SaveOnly || t.Name != m.config.layout().body+m.config.positions()
}

// inFolder is a parameter that stays in the folder. It implements [layers.Pages].
type inFolder struct {
	*folder
	param *Param
}

// Acquire implements [layers.Pages].
func (p inFolder) Acquire() (snug.View, error) { return p.acquire(p.param) }

// Release implements [layers.Pages]. What an operation changed is not kept.
func (p inFolder) Release(bool) error { return p.release(p.param) }

func (f *folder) acquire(p *Param) (v snug.View, err error) {
	if f.before != nil {
		return f.before.value(f.before.like(p))
	}
	if err := f.keep(); err != nil {
		return v, err
	}
	if kept, is := f.kept[p]; is {
		return f.resident(p, kept)
	}
	if f.used != nil {
		return v, fmt.Errorf("%s is used while %s is: %w", p.Name, f.used.Name, snug.ErrConfig)
	}
	if v, err = f.room(p.Len()); err != nil {
		return v, err
	}
	if err = f.fill(p, v); err == nil {
		f.used = p
	}
	return v, err
}

func (f *folder) release(p *Param) error {
	if f.used == p {
		f.used = nil
	}
	return nil
}

// resident returns a matrix that stays in memory once it was read.
func (f *folder) resident(p *Param, v snug.View) (_ snug.View, err error) {
	if v.Len() == 0 {
		if v, err = f.m.makeVector(f.m.dtype, p.Len()); err != nil {
			return v, err
		}
		f.kept[p] = v
	}
	if !f.filled[p] {
		if err := f.fill(p, v); err != nil {
			return v, err
		}
		f.filled[p] = true
	}
	return v, nil
}

// room returns the first n elements of the buffer, which it makes as large as the largest matrix needs it.
func (f *folder) room(n int) (snug.View, error) {
	if f.buffer.Len() == 0 {
		most, err := n, error(nil)
		for p := range f.m.unread() {
			if _, kept := f.kept[p]; !kept {
				most = max(most, p.Len())
			}
		}
		if f.buffer, err = f.m.makeVector(f.m.dtype, most); err != nil {
			return f.buffer, err
		}
	}
	return part(f.buffer, 0, n), nil
}

// unread yields the matrices that have no elements in memory: those that stay in the folder, and with SaveOnly those that will
// be quantized.
func (m *Model) unread() func(yield func(*Param) bool) {
	return func(yield func(*Param) bool) {
		for i := range m.params {
			p := &m.params[i]
			if _, in := p.Pages.(inFolder); (in || m.isQuantized(p) && m.options.SaveOnly) && !yield(p) {
				return
			}
		}
	}
}

// fill reads a matrix in floats.
func (f *folder) fill(p *Param, v snug.View) error {
	if f.read == nil {
		f.read = &quantizer{Model: f.m}
	}
	if err := f.from.read(f.read, p, v); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	return nil
}

// inPieces reports whether a matrix is saved as it is in the folder, and can be read without being in memory as a whole.
func (f *folder) inPieces(p *Param) bool {
	if f == nil || !f.m.options.SaveOnly || f.before != nil {
		return false
	}
	_, in := p.Pages.(inFolder)
	l := f.m.matrices[p]
	return in && (l == nil || l.Adapter == nil) && f.from.splits(&f.m.config, p)
}

// piece reads elements of such a matrix from one on, rounded to the model's type. Of another type than float32 they go through staged,
// which grows to as many.
func (f *folder) piece(p *Param, lo int, dst []float32, staged *snug.View) (err error) {
	to := snug.ViewOf(dst)
	if f.m.dtype != snug.F32 {
		if staged.Len() < len(dst) {
			if *staged, _, err = snug.MakeView(snug.CPU(), f.m.dtype, len(dst)); err != nil {
				return err
			}
		}
		to = part(*staged, 0, len(dst))
	}
	if err := f.from.readFrom(p, lo, to); err != nil {
		return fmt.Errorf("%s: %w", p.Name, err)
	}
	if f.m.dtype == snug.F32 {
		return nil
	}
	return amp.Cast(snug.ViewOf(dst), to)
}

// quantized returns a matrix in few bits, which the caller closes.
func (f *folder) quantized(p *Param) (w *qlora.Weight, err error) {
	if f.m.stored[p.Name] {
		err = f.read.load(p, f.from)
	} else {
		err = f.read.read(p, f.from)
	}
	w, p.Quantized = p.Quantized, nil
	return w, err
}

// keep lists the matrices that stay in memory: from the largest on, as many as leave room for the next one.
func (f *folder) keep() error {
	if f.listed || f.m.options.SaveOnly {
		return nil
	}
	list := slices.SortedStableFunc(f.m.unread(), func(a, b *Param) int { return b.Len() - a.Len() })
	left, size := f.m.options.Stream, int64(f.m.dtype.Size())
	for i, p := range list {
		if left -= int64(p.Len()) * size; left < 0 {
			if i == 0 {
				return fmt.Errorf("the option Stream is %d, and the largest matrix, %s, has %d bytes: %w", f.m.options.Stream, p.Name, int64(p.Len())*size, snug.ErrNoMemory)
			}
			delete(f.kept, list[i-1]) // whose memory is the buffer's
			break
		}
		f.kept[p] = snug.View{}
	}
	f.listed = true
	return nil
}

// begin makes what quantizing needs, which is freed after a Save.
func (f *folder) begin() (err error) {
	if f == nil {
		return nil
	}
	f.used = nil
	switch {
	case f.before != nil:
		return f.before.folder.begin()
	case f.m.options.SaveOnly:
		f.read, err = f.m.newQuantizer()
	}
	return err
}

// end drops what begin has made, whose memory the model frees.
func (f *folder) end() error {
	switch {
	case f == nil:
		return nil
	case f.before == nil:
		f.read = nil
		return nil
	}
	return errors.Join(f.before.close(), f.before.folder.end(), f.before.freeStaging())
}

func (f *folder) close() (err error) {
	if f == nil {
		return nil
	}
	if f.before != nil {
		err = errors.Join(f.end(), f.before.Model.Close())
	}
	if f.from != nil {
		err = errors.Join(err, f.from.Close())
	}
	return err
}

// like returns the parameter of g that is p in another model of the same family. Of a tied model the head is the embedding.
func (g *merger) like(p *Param) *Param {
	if own := g.index[p.Name]; own != nil {
		return own
	}
	return g.table.Table
}

// openAfter opens a model with the last of several adapters over the model with those before it.
func openAfter(dir string, o Options) (_ *Model, err error) {
	earlier, n := o, len(o.Before)-1
	earlier.AdapterDir, earlier.Before = o.Before[n], o.Before[:n]
	before, err := open(dir, earlier)
	if err != nil {
		return nil, err
	}
	config := before.config
	config.Whole = before.whole
	o.Base, o.DType = 0, before.dtype
	m, err := newModel(&config, o, nil)
	if err != nil {
		return nil, errors.Join(err, before.Close())
	}
	m.folder.before = &merger{Model: before}
	return m.complete(m.loadAfter)
}

// loadAfter sets the parameters that are in memory to those of the model with the earlier adapters.
func (m *Model) loadAfter() error {
	before := m.folder.before
	m.lost = before.tables.lost
	if err := before.folder.begin(); err != nil {
		return err
	}
	for i := range m.params {
		p := &m.params[i]
		if m.adapted(p) || p.Pages != nil || m.tables.files[p.Name] != "" {
			continue
		}
		v, err := before.value(before.like(p))
		if err == nil {
			err = snug.Copy(p.Value, v)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return m.folder.end()
}

// held returns the bytes of matrices that stay in the folder and that memory has now.
func (f *folder) held() int64 {
	n := int64(f.buffer.Bytes())
	for _, v := range f.kept {
		n += int64(v.Bytes())
	}
	return n
}
