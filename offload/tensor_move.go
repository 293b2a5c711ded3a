package offload

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/cpu"
	"github.com/snug-ml/snug/internal/device"
	"github.com/snug-ml/snug/internal/half"
)

// LoadTo starts to copy elements off to off+dst.Len()-1 to dst, on m's device, as
// [Mover.Load] does. If dst has another floating-point type, the host converts the
// elements, rounded to nearest. When LoadTo returns, all these pages have been read. It
// pins one page at a time and reads the coming pages ahead, as [Tensor.Prefetch] does.
//
// It returns the errors of Load and of [Tensor.Pin]. After an error nothing is under way.
func (t *Tensor[T]) LoadTo(m *Mover, dst snug.View, off int) (move Move, err error) {
	return t.loadAfter(m, dst, off, after{})
}

// loadAfter is LoadTo with copies that wait for after.
func (t *Tensor[T]) loadAfter(m *Mover, dst snug.View, off int, after after) (move Move, err error) {
	if err := t.checkMove(m, dst, off, true); err != nil {
		return Move{}, err
	}
	var all Move
	loaded := false
	defer func() {
		if !loaded { // or the Source of a page did not return
			err = errors.Join(err, all.Wait())
		}
	}()
	err = t.walk(off, dst.Len(), false, func(page Page[T], part []T, done int) error {
		coming := page.p.num + 1
		t.Prefetch(coming, min(coming+t.s.opts.PrefetchDepth, pageCount(off+dst.Len(), t.obj.pageLen)))
		to, err := dst.Slice(done, done+len(part))
		if err == nil {
			page.p.elements.RLock()
			err = m.loadAs(to, snug.SliceView(part), after, &all)
			page.p.elements.RUnlock()
		}
		return errors.Join(err, page.Unpin(false))
	})
	if err != nil {
		return Move{}, err
	}
	loaded = true
	return all, nil
}

// convertLen is the number of elements that are converted at a time on their way to a
// device.
const convertLen = 1 << 16

var converted cpu.Scratch

// loadAs is Load, with a conversion if dst has another floating-point type than src. It
// joins its moves to all.
func (m *Mover) loadAs(dst, src snug.View, after after, all *Move) error {
	if dst.DType() == src.DType() {
		move, err := m.loadAfter(dst, src, after)
		all.join(move)
		return err
	}
	tile := converted.Get(convertLen)
	defer converted.Put(tile)
	memory := snug.SliceView(*tile)
	for lo := 0; lo < src.Len(); lo += convertLen {
		from, err := src.Slice(lo, min(lo+convertLen, src.Len()))
		if err != nil {
			return err
		}
		to, err := dst.Slice(lo, lo+from.Len())
		if err != nil {
			return err
		}
		host := viewOf(device.Mem(&memory).Bytes()[:to.Bytes()], to.DType())
		half.Convert(host, from, 0, from.Len(), false)
		move, err := m.loadAfter(to, host, after)
		if err != nil {
			return err
		}
		all.join(move)
	}
	return nil
}

// SaveFrom copies src, on m's device, to elements off to off+src.Len()-1, and returns
// when it is done. It copies src after all kernels queued before. Two pages of the tensor
// are pinned at a time: one is copied while the store loads the next. A page that src
// covers is not read from disk. The elements become durable with the next [Store.Commit].
//
// It returns the errors of [Mover.Save] and of [Tensor.Pin]. Errors of Save come before
// anything is written, except errors of the device. After an error of the device the
// elements are undefined; go back to the last commit.
func (t *Tensor[T]) SaveFrom(m *Mover, src snug.View, off int) error {
	if err := t.checkMove(m, src, off, false); err != nil {
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

// finish waits for the page, if there is one, and unpins it.
func (s saving[T]) finish() error {
	if s.page.s == nil {
		return nil
	}
	return errors.Join(s.move.Wait(), s.page.Unpin(true))
}

// checkMove reports whether m can move v to or from the tensor's elements that begin at
// off, with a conversion or without.
func (t *Tensor[T]) checkMove(m *Mover, v snug.View, off int, convert bool) error {
	if err := t.checkRange(off, v.Len()); err != nil {
		return err
	}
	if !m.made() {
		return in(errNoMover, "tensor %q", t.obj.name)
	}
	own := snug.DTypeOf[T]()
	if v.Len() > 0 && v.DType() != own && !(convert && own.IsFloat() && v.DType().IsFloat()) {
		return fmt.Errorf("offload: a vector of %s for tensor %q, which holds %s: %w", v.DType(), t.obj.name, own, snug.ErrDType)
	}
	if v.Len() > 0 && v.Device() != m.dev {
		return fmt.Errorf("offload: a vector on %s for a mover of %s: %w", v.Device(), m.dev, snug.ErrDevice)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.usable(); err != nil {
		return in(err, "tensor %q", t.obj.name)
	}
	return nil
}
