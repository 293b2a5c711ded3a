package transformer

import (
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/qlora"
)

// This file has DoRA: y = c ⊙ (x·Wᵀ + s·(x·Aᵀ)·Bᵀ), where c makes the magnitudes the norms of the rows of W + s·B·A.
// The gradient of the magnitudes needs the sum in brackets. The backward step computes it again, with one more product
// for each adapted matrix, so that no stage keeps it.

// makeMagnitudes makes the DoRA of each adapter, and sets the magnitudes of fresh adapters to the norms of the rows of
// their matrix.
func (m *Model) makeMagnitudes() error {
	if !m.adapters.DoRA || m.options.SaveOnly {
		return nil
	}
	for _, l := range m.layers {
		if l.Adapter == nil {
			continue
		}
		if err := m.makeMagnitude(l); err != nil {
			return fmt.Errorf("%s: %w", l.Weight.Name, err)
		}
	}
	if m.dense != nil {
		m.free = append(m.free, m.dense.Close)
	}
	return nil
}

func (m *Model) makeMagnitude(l *linear) error {
	a := l.Adapter
	matrix, err := m.matrixOf(l)
	if err != nil {
		return err
	}
	if m.options.Adapter != nil {
		if err := matrix.Norms(a.Magnitude, nil); err != nil {
			return err
		}
	}
	if a.DoRA, err = qlora.NewDoRA(matrix, a.LoRA); err != nil {
		return err
	}
	m.free, m.weightBytes = append(m.free, a.DoRA.Close), m.weightBytes+2*4*int64(a.Out)
	return nil
}

// matrixOf returns the matrix of a layer. Matrices in floats share a tile.
func (m *Model) matrixOf(l *linear) (_ qlora.Matrix, err error) {
	switch {
	case l.Frozen != nil:
		return l.Frozen, nil
	case l.Weight.Pages != nil:
		return nil, fmt.Errorf("DoRA takes matrices in floats from memory, and the option PageFloats puts them in pages, and Stream leaves them in the folder: %w", snug.ErrConfig)
	case m.dense != nil:
		return m.dense.Share(l.Weight.Value, l.Out, l.In, l.Transposed)
	}
	m.dense, err = qlora.NewDense(l.Weight.Value, l.Out, l.In, l.Transposed)
	return m.dense, err
}
