package layers

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/fused"
)

// KeyValues are the keys and values of one [Attention], its Keeps, that later ones read, their Reads, as in the last layers of Gemma 4
// E2B: what enters attention, after norms and rope. They lie beside the chain for a whole pass, with the sum of the gradients from the
// layers that read them, which the layer that keeps them adds to its own. A plan of package remat may compute any of the layers again:
// the keys and values are then the same bits, and gradients are added in the order of the backward pass, last layer first. The memory is
// 2 rows of keys for each row of a batch, and as much in the backward pass. The zero KeyValues are ready to use.
type KeyValues struct {
	k, v, dk, dv scratch
	key, value   Tensor // parts of k and v
	pass         *Pass
	kept, summed uint64 // batch of the pass whose keys and values, and gradients, there are
}

// Bytes returns the bytes of the memory.
func (s *KeyValues) Bytes() int64 {
	if s == nil {
		return 0
	}
	return s.k.bytes() + s.v.bytes() + s.dk.bytes() + s.dv.bytes()
}

// Close frees it.
func (s *KeyValues) Close() error {
	if s == nil {
		return nil
	}
	s.pass = nil
	return errors.Join(s.k.close(), s.v.close(), s.dk.close(), s.dv.close())
}

// grow makes room for n elements in vectors.
func (s *KeyValues) grow(p *Pass, n int, list ...*scratch) error {
	if s.pass != p {
		if err := s.Close(); err != nil {
			return err
		}
		for _, x := range []*scratch{&s.k, &s.v, &s.dk, &s.dv} {
			*x = scratch{dev: p.dev, dt: p.DType}
		}
		s.pass, s.kept, s.summed = p, 0, 0
	}
	for _, x := range list {
		if err := x.grow(n); err != nil {
			return err
		}
	}
	return nil
}

// Reserve makes memory for the keys and values of the rows of the batch, of width elements each, and for their gradients if there is a
// backward step. Without it the layers make it when they need it. The error wraps [snug.ErrConfig] for a pass that [NewPass] has not made.
func (s *KeyValues) Reserve(p *Pass, width int, backward bool) error {
	if s == nil || !p.made() || width < 0 {
		return fmt.Errorf("layers: reserving keys and values of %d elements a row: want a pass of NewPass, and 0 elements or more: %w", width, snug.ErrConfig)
	}
	list := []*scratch{&s.k, &s.v, &s.dk, &s.dv}
	if !backward {
		list = list[:2]
	}
	return s.grow(p, p.Batch.Rows*width, list...)
}

// keep copies the keys and values of the rows of the batch. A nil s keeps nothing.
func (s *KeyValues) keep(p *Pass, k, v *Tensor) {
	if s == nil {
		return
	}
	p.Do(func() error {
		n := k.Len()
		if err := s.grow(p, n, &s.k, &s.v); err != nil {
			return err
		}
		s.kept, s.key.View, s.value.View = p.batches, part(s.k.v, 0, n), part(s.v.v, 0, n)
		return errors.Join(snug.Copy(s.key.View, k.View), snug.Copy(s.value.View, v.View))
	})
}

// read returns the keys and values, which are of as many elements a row.
func (s *KeyValues) read(p *Pass, width int) (k, v *Tensor) {
	p.Do(func() error {
		if s.pass != p || s.kept != p.batches || s.key.Len() != p.rows*width {
			return fmt.Errorf("no Attention before has kept keys and values of %d elements for the %d rows of the batch: %w", width, p.rows, snug.ErrConfig)
		}
		return nil
	})
	return &s.key, &s.value
}

// add adds to the sum of the gradients.
func (s *KeyValues) add(p *Pass, dk, dv *Tensor) {
	p.Do(func() error {
		n := dk.Len()
		if err := s.grow(p, n, &s.dk, &s.dv); err != nil {
			return err
		}
		sumK, sumV := part(s.dk.v, 0, n), part(s.dv.v, 0, n)
		if s.summed != p.batches {
			s.summed = p.batches
			return errors.Join(snug.Copy(sumK, dk.View), snug.Copy(sumV, dv.View))
		}
		return errors.Join(fused.Add(sumK, sumK, dk.View), fused.Add(sumV, sumV, dv.View))
	})
}

// addTo adds the sum to the gradients of the layer that keeps the keys and values, if there is one for the batch.
func (s *KeyValues) addTo(p *Pass, dk, dv *Tensor) {
	if s == nil {
		return
	}
	p.Do(func() error {
		if s.pass != p || s.summed != p.batches {
			return nil
		}
		return errors.Join(fused.Add(dk.View, dk.View, part(s.dk.v, 0, dk.Len())), fused.Add(dv.View, dv.View, part(s.dv.v, 0, dv.Len())))
	})
}
