package transformer

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/amp"
)

// This file has models that use the weights of another one, with Options.Share.

// checkShare returns an error unless the model can use the weights of Options.Share, and takes the options that both have.
func (m *Model) checkShare() error {
	o, s := &m.options, m.options.Share
	if s == nil {
		return nil
	}
	if err := s.usable(); err != nil {
		return fmt.Errorf("the option Share: %w", err)
	}
	switch {
	case o.SaveOnly || o.Stream != 0 || o.Pages != nil || s.options.Pages != nil || o.Adapter != nil || o.Train != nil:
		return fmt.Errorf("the option Share goes with none of SaveOnly, Stream, Pages, Adapter and Train: %w", snug.ErrConfig)
	case s.options.Adapter != nil || s.options.AdapterDir != "":
		return fmt.Errorf("the option Share is a model with adapters, want one without: %w", snug.ErrConfig)
	case o.Base != 0 && o.Base != s.options.Base || o.Decode && !s.options.Decode || o.DType != 0 && o.DType != s.dtype || o.Device != nil && o.Device != s.dev:
		return fmt.Errorf("the options Base, Decode, DType and Device are not those of Share, want these or zero: %w", snug.ErrConfig)
	case m.config.Family != s.config.Family || m.config.Dim != s.config.Dim || m.config.Layers != s.config.Layers:
		return fmt.Errorf("the option Share is a model of %s with %d layers of %d elements, and the folder has %s with %d of %d: %w",
			s.config.Family, s.config.Layers, s.config.Dim, m.config.Family, m.config.Layers, m.config.Dim, snug.ErrConfig)
	}
	o.Decode = s.options.Decode
	o.Base, m.dtype, m.dev = cmp.Or(s.options.Base, o.Base), s.dtype, s.dev
	return nil
}

// sharedParam returns the parameter of Options.Share that a tensor of the model is, or nil.
func (m *Model) sharedParam(t amp.Tensor) *Param {
	s := m.options.Share
	if s == nil || m.saved[t.Name] || m.tables.has(t.Name) {
		return nil
	}
	p := s.index[t.Name]
	if p == nil || !slices.Equal(p.Shape, t.Shape) {
		return nil
	}
	return p
}

// useShared makes p what it is in the model of Options.Share.
func (m *Model) useShared(p *Param, from *Param) {
	if m.shared == nil {
		m.shared = map[string]bool{}
	}
	p.Value, p.Quantized, p.Pages, p.Trains = from.Value, from.Quantized, from.Pages, false
	m.shared[p.Name] = true
}
