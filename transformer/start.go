package transformer

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
)

// This file has fresh adapters that take over a part of their matrix.

// checkStart returns an error unless the matrices have the form whose loss adapters make up for.
func (m *Model) checkStart(s qlora.Start) error {
	base := cmp.Or(m.options.Base, m.storedType)
	if s.Base == 0 || m.options.Base == s.Base {
		return nil
	}
	form := "the type of the model"
	if base != 0 {
		form = base.String()
	}
	want := strings.ToUpper(s.Base.String())
	return fmt.Errorf("adapters of %s make up for what weights lose in %s, and the base is in %s: want %s: %w", s.Name, want, form, want, snug.ErrConfig)
}

// startAdapters begins the adapters of matrices in floats. Those of matrices in 4 bits begin when the matrix is read.
func (m *Model) startAdapters() error {
	for _, l := range m.layers {
		a := m.byModule[l.Weight.Name]
		if a == nil || a.first == nil || l.Weight.Quantized != nil {
			continue
		}
		if err := l.Weight.With(true, func(w snug.View) error { return m.startPlain(l, a, w) }); err != nil {
			return fmt.Errorf("%s: %w", l.Weight.Name, err)
		}
	}
	return nil
}

func (m *Model) startPlain(l *linear, a *adapter, w snug.View) (err error) {
	if !l.Transposed {
		return m.startAdapter(a, w)
	}
	host, free, err := snug.MakeView(snug.CPU(), w.DType(), 2*w.Len())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, free()) }()
	turned, as := part(host, 0, w.Len()), part(host, w.Len(), w.Len())
	if err := snug.Copy(as, w); err != nil {
		return err
	}
	if err := transpose(turned, as, l.In, l.Out); err != nil {
		return err
	}
	if err := m.startAdapter(a, turned); err != nil {
		return err
	}
	if err := transpose(as, turned, l.Out, l.In); err != nil {
		return err
	}
	return snug.Copy(w, as)
}

// startAdapter makes the first values of an adapter of its matrix, [out, in] elements, from which it takes them.
func (m *Model) startAdapter(a *adapter, w snug.View) error {
	if err := a.Start(w, m.adapters.Init); err != nil {
		return err
	}
	return errors.Join(snug.Copy(a.first.A, a.A), snug.Copy(a.first.B, a.B))
}
