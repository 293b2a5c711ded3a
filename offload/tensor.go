package offload

import (
	"context"
	"fmt"
	"math"

	"github.com/snug-ml/snug"
)

// Tensor is a vector of T in a Store, cut into pages of equal length; the last page may be
// shorter. It is a handle: several handles may refer to one tensor. Its methods are safe for
// concurrent use. Overlapping calls of ReadAt, WriteAt and LoadTo are atomic per page, not
// across pages. Pinned pages, the elements that [Tensor.SaveFrom] writes, and the
// [Updater.Weights] during a step have no such protection: the caller must not use the same
// elements elsewhere at the same time.
type Tensor[T snug.Element] struct {
	s   *Store
	obj *object
}

// Create returns the tensor of n elements under name, in pages of pageLen elements. A new
// tensor holds zeros and takes no memory or disk until it is used. An existing tensor
// must have the same element type, length and page length.
//
// Errors: [snug.ErrConfig] when name is not a valid key or names a blob,
// [snug.ErrDType] when the tensor has another element type, and
// [snug.ErrShape] when n is negative, pageLen is not positive or takes
// more than 1 GiB, there are more than 4 Mi pages, or the tensor has other lengths.
func Create[T snug.Element](s *Store, name string, n, pageLen int) (*Tensor[T], error) {
	dt := snug.DTypeOf[T]()
	if err := checkTensor(name, dt, n, pageLen); err != nil {
		return nil, err
	}
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	obj, ok := s.objects[name]
	if !ok {
		obj = newTensor(name, dt, n, pageLen)
		s.add(obj)
		return &Tensor[T]{s, obj}, nil
	}
	if err := obj.check(dt); err != nil {
		return nil, err
	}
	if obj.source != nil {
		return nil, fmt.Errorf("offload: create: tensor %q is attached, and so read-only: %w", name, snug.ErrConfig)
	}
	if obj.n != n || obj.pageLen != pageLen {
		return nil, fmt.Errorf("offload: tensor %q has %d elements in pages of %d, not %d in pages of %d: %w", name, obj.n, obj.pageLen, n, pageLen, snug.ErrShape)
	}
	return &Tensor[T]{s, obj}, nil
}

// Lookup returns the tensor under name. Errors: [snug.ErrConfig] when there is no tensor
// of that name, or name is a blob, and [snug.ErrDType] when the tensor has another
// element type.
func Lookup[T snug.Element](s *Store, name string) (*Tensor[T], error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	obj, ok := s.objects[name]
	if !ok {
		return nil, fmt.Errorf("offload: there is no tensor %q: %w", name, snug.ErrConfig)
	}
	if err := obj.check(snug.DTypeOf[T]()); err != nil {
		return nil, err
	}
	return &Tensor[T]{s, obj}, nil
}

// check reports whether obj is a tensor of dt.
func (obj *object) check(dt snug.DType) error {
	switch obj.dtype {
	case dt:
		return nil
	case 0:
		return fmt.Errorf("offload: %q is a blob, not a tensor: %w", obj.name, snug.ErrConfig)
	}
	return fmt.Errorf("offload: tensor %q holds %s, not %s: %w", obj.name, obj.dtype, dt, snug.ErrDType)
}

func checkTensor(name string, dt snug.DType, n, pageLen int) error {
	if err := checkKey(name); err != nil {
		return err
	}
	size := dt.Size()
	switch {
	case size == 0:
		return fmt.Errorf("offload: tensor %q of element type %d: %w", name, dt, snug.ErrDType)
	case n < 0 || n > math.MaxInt/size:
		return fmt.Errorf("offload: tensor %q of %d elements: %w", name, n, snug.ErrShape)
	case pageLen < 1 || pageLen > maxPage/size:
		return fmt.Errorf("offload: tensor %q in pages of %d elements, want 1 to %d: %w", name, pageLen, maxPage/size, snug.ErrShape)
	case pageCount(n, pageLen) > maxPages:
		return fmt.Errorf("offload: tensor %q in %d pages, want %d at most: %w", name, pageCount(n, pageLen), maxPages, snug.ErrShape)
	}
	return nil
}

// pageCount returns how many pages hold n elements.
func pageCount(n, pageLen int) int {
	count := n / pageLen
	if n%pageLen != 0 {
		count++
	}
	return count
}

var errNoTensor = fmt.Errorf("offload: the tensor is nil, or is in no store: %w", snug.ErrConfig)

// made reports whether t was made by Create, Lookup or Attach.
func (t *Tensor[T]) made() bool { return t != nil && t.obj != nil }

// Len returns the number of elements.
func (t *Tensor[T]) Len() int {
	if !t.made() {
		return 0
	}
	return t.obj.n
}

// PageLen returns the number of elements of every page except the last.
func (t *Tensor[T]) PageLen() int {
	if !t.made() {
		return 0
	}
	return t.obj.pageLen
}

// Pages returns the number of pages.
func (t *Tensor[T]) Pages() int {
	if !t.made() {
		return 0
	}
	return len(t.obj.pages)
}

// Page is a pinned page of a tensor.
type Page[T snug.Element] struct {
	// Data are the page's elements, at a multiple of 64 bytes. They do not move until
	// Unpin, and all pins of the page share them. After Unpin the memory may not be
	// touched: it may no longer belong to the process.
	Data []T
	s    *Store
	p    *page
}

// Pin brings page number page into memory and holds it there until [Page.Unpin]. It waits
// and fails as [Store.Acquire] does. It returns ctx's error when ctx ends before the
// transfer of this page has begun. Pinning a page in memory does not allocate.
func (t *Tensor[T]) Pin(ctx context.Context, page int) (Page[T], error) {
	return t.pin(ctx, page, false)
}

func (t *Tensor[T]) pin(ctx context.Context, i int, overwrite bool) (Page[T], error) {
	if err := t.checkPage(ctx, i); err != nil {
		return Page[T]{}, err
	}
	p := &t.obj.pages[i]
	if err := t.s.lockAndPin(ctx, p, overwrite); err != nil {
		return Page[T]{}, err
	}
	return Page[T]{Data: elements[T](p.buf), s: t.s, p: p}, nil
}

// checkPage reports whether t has a page i that can be pinned with ctx.
func (t *Tensor[T]) checkPage(ctx context.Context, i int) error {
	switch {
	case !t.made():
		return errNoTensor
	case ctx == nil:
		return fmt.Errorf("offload: pin of tensor %q: the context is nil: %w", t.obj.name, snug.ErrConfig)
	case i < 0 || i >= len(t.obj.pages):
		return fmt.Errorf("offload: page %d of tensor %q, which has %d: %w", i, t.obj.name, len(t.obj.pages), snug.ErrShape)
	}
	return nil
}

// Unpin ends the use of Data. dirty says that elements may have changed; the change
// becomes durable with the next [Store.Commit]. The error wraps [snug.ErrConfig] when the
// page is not pinned.
func (p Page[T]) Unpin(dirty bool) error {
	if p.s == nil {
		return fmt.Errorf("offload: unpin of an empty Page: %w", snug.ErrConfig)
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.s.unpin(p.p, dirty)
}

// forget is Unpin of a page whose elements nobody needs any more. Unless the page has
// other pins, its elements are zeros from now on and take neither memory nor disk.
func (p Page[T]) forget() error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.s.forget(p.p)
}

// Prefetch is [Store.Prefetch] for pages lo to hi-1. Pages that do not exist
// are ignored.
func (t *Tensor[T]) Prefetch(lo, hi int) {
	if !t.made() {
		return
	}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	for i := max(lo, 0); i < min(hi, len(t.obj.pages)); i++ {
		t.s.hint(&t.obj.pages[i])
	}
}

// ReadAt copies elements off to off+len(dst)-1 into dst, one page in memory at a time.
// The error wraps [snug.ErrShape] when the tensor does not have all of them. Other errors
// are errors of [Tensor.Pin]; dst then has the elements of the pages before the error.
func (t *Tensor[T]) ReadAt(dst []T, off int) error {
	return t.walk(off, len(dst), false, func(page Page[T], part []T, done int) error {
		page.p.elements.RLock()
		copy(dst[done:], part)
		page.p.elements.RUnlock()
		return page.Unpin(false)
	})
}

// WriteAt copies src to elements off to off+len(src)-1, one page in memory at a time. A
// page that src covers is not read from disk. Errors are the same as for ReadAt.
func (t *Tensor[T]) WriteAt(src []T, off int) error {
	return t.walk(off, len(src), true, func(page Page[T], part []T, done int) error {
		page.p.elements.Lock()
		copy(part, src[done:])
		page.p.elements.Unlock()
		return page.Unpin(true)
	})
}

// walk calls do for each page that has some of elements off to off+n-1. It passes the
// pinned page, these elements of the page, and the number of such elements in the pages
// before. do unpins the page.
func (t *Tensor[T]) walk(off, n int, write bool, do func(page Page[T], part []T, done int) error) error {
	if err := t.checkRange(off, n); err != nil {
		return err
	}
	if write {
		if err := t.writable(); err != nil {
			return err
		}
	}
	for done := 0; done < n; {
		i, lo := (off+done)/t.obj.pageLen, (off+done)%t.obj.pageLen
		length := min(t.obj.pageLen, t.obj.n-i*t.obj.pageLen)
		hi := min(length, lo+n-done)
		page, err := t.pin(context.Background(), i, write && hi-lo == length)
		if err != nil {
			return err
		}
		if err := do(page, page.Data[lo:hi], done); err != nil {
			return err
		}
		done += hi - lo
	}
	return nil
}

func (t *Tensor[T]) checkRange(off, n int) error {
	if !t.made() {
		return errNoTensor
	}
	if off < 0 || n > t.obj.n || off > t.obj.n-n {
		return fmt.Errorf("offload: %d elements from element %d of tensor %q, which has %d: %w", n, off, t.obj.name, t.obj.n, snug.ErrShape)
	}
	return nil
}
