package transformer

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/qlora"
)

// This file has the matrices in floats that lie in Options.Pages. An operation acquires the matrix that it multiplies by,
// and releases it when it has ended.

// pagesFloats reports whether a tensor in floats lies in the pages.
func (m *Model) pagesFloats(t amp.Tensor) bool {
	return m.options.PageFloats && len(t.Shape) == 2 && !m.quantizes(t) && !m.saved[t.Name] && m.tables.files[t.Name] == ""
}

// checkPages returns an error for pages that do not go with the other options.
func (m *Model) checkPages(held qlora.Type) error {
	o := m.options
	switch {
	case o.Pages == nil && o.PageFloats:
		return fmt.Errorf("the option PageFloats wants Pages: %w", snug.ErrConfig)
	case o.Pages != nil && !m.dev.IsCPU():
		return fmt.Errorf("the option Pages is for the CPU, and the model is on %s: %w", m.dev.Name(), snug.ErrDevice)
	case o.Pages != nil && held == 0 && !o.PageFloats:
		return fmt.Errorf("the option Pages keeps quantized matrices, and Base is %s: want a Base, or PageFloats: %w", o.Base, snug.ErrConfig)
	}
	return nil
}

// Paged returns the key in Options.Pages, the type and the number of elements of a parameter in floats that lies there, and
// an empty key for others. Package train asks for it.
func (m *Model) Paged(name string) (key string, dt snug.DType, elements int) {
	p := m.index[name]
	if p == nil || !p.paged {
		return "", 0, 0
	}
	return pageKey(p), m.dtype, p.Len()
}

// hold returns the elements of a parameter in floats, which stay until drop.
func (m *Model) hold(p *Param) (snug.View, error) {
	if !p.paged {
		return p.Value, nil
	}
	size := p.Len() * m.dtype.Size()
	blob, err := m.options.Pages.Acquire(pageKey(p), size)
	if err != nil {
		return snug.View{}, err
	}
	if len(blob) != size {
		err := fmt.Errorf("the Storage gives %d bytes of %s, want %d: %w", len(blob), p.Name, size, snug.ErrCorrupt)
		return snug.View{}, errors.Join(err, m.options.Pages.Release(pageKey(p), false))
	}
	return device.As(snug.SliceView(blob), m.dtype), nil
}

// drop ends a hold. dirty says that the elements have changed.
func (m *Model) drop(p *Param, dirty bool) error {
	if !p.paged {
		return nil
	}
	return m.options.Pages.Release(pageKey(p), dirty)
}

// with calls do with the elements of a parameter in floats.
func (m *Model) with(p *Param, do func(w snug.View) error) error {
	w, err := m.hold(p)
	if err != nil {
		return err
	}
	return errors.Join(do(w), m.drop(p, false))
}

// set calls do, which writes the elements of a parameter in floats.
func (m *Model) set(p *Param, do func(w snug.View) error) error {
	w, err := m.hold(p)
	if err != nil {
		return err
	}
	return errors.Join(do(w), m.drop(p, true))
}
