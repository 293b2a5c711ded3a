package train

import (
	"errors"
	"fmt"
	"io"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/plan"
)

// part returns the part of a parameter that this rank updates, and its first element.
func (p *param) part() (lo int, part snug.View, err error) {
	if p.key != "" {
		lo, b, err := p.pages.Part(p.key)
		dt := p.value.DType()
		return lo / dt.Size(), device.As(snug.SliceView(b), dt), err
	}
	if p.lo == p.hi { // the end of a vector has no address
		part, err = p.value.Slice(0, 0)
	} else {
		part, err = p.value.Slice(p.lo, p.hi)
	}
	return p.lo, part, err
}

// change calls do with the part of a parameter that this rank updates, and with its first element.
func (p *param) change(do func(lo int, part snug.View) error) error {
	if dt := p.value.DType(); p.key != "" {
		return p.pages.Update(p.key, func(lo int, b []byte) error { return do(lo/dt.Size(), device.As(snug.SliceView(b), dt)) })
	}
	lo, part, err := p.part()
	if err != nil {
		return err
	}
	return do(lo, part)
}

// divided notes that a parameter lies in an accum.Pages, if it does. Its value is then a vector of its type without elements.
func (t *Trainer[B]) divided(m Paged, p *param) (err error) {
	key, dt, n := m.Paged(p.name)
	if key == "" {
		return nil
	}
	pages, ok := t.options.Reducer.(*accum.Pages)
	if !ok || t.options.Shard != plan.ShardWeights {
		return fmt.Errorf("parameter %q is in pages, which wants ShardWeights, with the model's accum.Pages as Reducer: %w", p.name, snug.ErrConfig)
	}
	p.pages, p.key, p.n = pages, key, n
	p.value, _, err = snug.MakeView(snug.CPU(), dt, 0)
	return err
}

// shifted returns fill for a part that begins at element lo.
func shifted(fill FirstValue, lo int) FirstValue {
	if fill == nil || lo == 0 {
		return fill
	}
	return func(at int, w []float32) error { return fill(lo+at, w) }
}

// writeWeights writes the parameters to w on rank 0. On the others w is nil; they gather with rank 0 the parameters that the
// ranks divide. After an error of w the gathers go on, so that later ones find the ranks in the same order.
func (t *Trainer[B]) writeWeights(w io.Writer) (failed error) {
	for _, p := range t.params {
		if !t.saves(p) {
			continue
		}
		v := p.value
		if p.key != "" {
			b, err := p.pages.Acquire(p.key, p.n*v.DType().Size())
			if err != nil {
				return errors.Join(failed, err)
			}
			v = device.As(snug.SliceView(b), v.DType())
		}
		if w != nil && failed == nil {
			failed = writeValues(w, v)
		}
		if p.key != "" {
			if err := p.pages.Release(p.key, false); err != nil {
				return errors.Join(failed, err)
			}
		}
	}
	return failed
}

// readWeights reads what writeWeights wrote. Of a parameter that the ranks divide it keeps this rank's part.
func (t *Trainer[B]) readWeights(r io.Reader) error {
	for _, p := range t.params {
		if !t.saves(p) {
			continue
		}
		if p.key == "" {
			if err := readValues(r, p.value); err != nil {
				return err
			}
			continue
		}
		size := p.value.DType().Size()
		err := p.change(func(lo int, part snug.View) error {
			if err := skip(r, lo*size); err != nil {
				return err
			}
			if err := readValues(r, part); err != nil {
				return err
			}
			return skip(r, (p.n-lo-part.Len())*size)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// skip reads n bytes.
func skip(r io.Reader, n int) error {
	_, err := io.CopyN(io.Discard, r, int64(n))
	return err
}
