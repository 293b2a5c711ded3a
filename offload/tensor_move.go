package offload

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
)

// LoadTo starts to copy elements off to off+dst.Len()-1 to dst, on m's device, as
// [Mover.Load] does. All pages of the tensor have been read, one pinned at a time,
// when it returns, and the coming ones are read ahead as by [Tensor.Prefetch].
//
// Errors: those of Load, and those of [Tensor.Pin]; nothing is under way after one.
func (t *Tensor[T]) LoadTo(m *Mover, dst snug.View, off int) (Move, error) {
	if err := t.checkMove(m, dst, off); err != nil {
		return Move{}, err
	}
	var all Move
	err := t.walk(off, dst.Len(), false, func(page Page[T], part []T, done int) error {
		coming := page.p.num + 1
		t.Prefetch(coming, min(coming+t.s.opts.PrefetchDepth, pageCount(off+dst.Len(), t.obj.pageLen)))
		to, err := dst.Slice(done, done+len(part))
		if err == nil {
			var v Move
			v, err = m.Load(to, snug.SliceView(part))
			all.join(v)
		}
		return errors.Join(err, page.Unpin(false))
	})
	if err != nil {
		return Move{}, errors.Join(err, all.Wait())
	}
	return all, nil
}

// SaveFrom copies src, on m's device, to elements off to off+src.Len()-1, and
// returns when it is done. It copies what kernels queued before leave in src. Two
// pages of the tensor are pinned at a time: one is copied while the store makes room
// for the next. A page that it covers is not read from disk. The elements become
// durable with the next [Store.Commit].
//
// Errors: those of [Mover.Save], and those of [Tensor.Pin]. The former come before
// anything is written, unless they are of the device; then the elements are not
// defined, and the way back is the last commit.
func (t *Tensor[T]) SaveFrom(m *Mover, src snug.View, off int) error {
	if err := t.checkMove(m, src, off); err != nil {
		return err
	}
	var last saving[T]
	err := t.walk(off, src.Len(), true, func(page Page[T], part []T, done int) error {
		from, err := src.Slice(done, done+len(part))
		next := saving[T]{page: page}
		if err == nil {
			next.move, err = m.Save(snug.SliceView(part), from)
		}
		err = errors.Join(err, last.finish())
		last = next
		return err
	})
	return errors.Join(err, last.finish())
}

// saving is a page that a Mover fills.
type saving[T snug.Element] struct {
	page Page[T]
	move Move
}

// finish waits for the page and unpins it, if there is one.
func (s saving[T]) finish() error {
	if s.page.s == nil {
		return nil
	}
	return errors.Join(s.move.Wait(), s.page.Unpin(true))
}

// checkMove reports whether m can move v to or from the tensor's elements from off
// on.
func (t *Tensor[T]) checkMove(m *Mover, v snug.View, off int) error {
	if err := t.checkRange(off, v.Len()); err != nil {
		return err
	}
	if v.Len() > 0 && v.DType() != snug.DTypeOf[T]() {
		return fmt.Errorf("offload: a vector of %s for tensor %q, which holds %s: %w", v.DType(), t.obj.name, snug.DTypeOf[T](), snug.ErrDType)
	}
	if v.Len() > 0 && v.Device() != m.dev {
		return fmt.Errorf("offload: a vector on %s for a mover of %s: %w", v.Device(), m.dev, snug.ErrDevice)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.usable()
}
