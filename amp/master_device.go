package amp

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
)

// This file is what Master does where the weights lie on a device other than
// the CPU.

// reserve makes the memory of p on the device of the masters.
func (m *Master) reserve(p *masterParam) (err error) {
	if m.dev.IsCPU() {
		return nil
	}
	if m.host == nil {
		m.host = make([]float32, m.chunk)
	}
	p.there, err = snug.Make[float32](m.dev, p.n)
	return err
}

// visitThere calls f with a copy of weights lo to hi-1, which returns to the
// device if it is dirty.
func (m *Master) visitThere(p *masterParam, lo, hi int, dirty bool, f func(lo int, w []float32) error) error {
	part, err := p.there.Slice(lo, hi)
	if err != nil {
		return err
	}
	w := m.host[:hi-lo]
	if err := part.CopyOut(w); err != nil {
		return err
	}
	if err := f(lo, w); err != nil || !dirty {
		return err
	}
	return part.CopyIn(w)
}

// castThere is cast on the device of p.
func (p *masterParam) castThere(name string, param snug.View, step func(lo int, w snug.View) error) error {
	err := step(0, p.there.View())
	if err == nil {
		err = cast(param, p.there.View())
	}
	if err != nil {
		return fmt.Errorf("amp: master %q: %w", name, err)
	}
	return nil
}

// Close frees weights on a device other than the CPU and forgets all parameters.
func (m *Master) Close() error {
	err := closeAll(m.params)
	m.params = map[string]*masterParam{}
	return err
}

func closeAll(params map[string]*masterParam) error {
	var errs []error
	for _, p := range params {
		errs = append(errs, p.there.Close())
	}
	return errors.Join(errs...)
}
