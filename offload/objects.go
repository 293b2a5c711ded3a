package offload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/snug-ml/snug"
)

// object is a blob of one page, or a tensor. A key names it.
type object struct {
	name    string
	dtype   snug.DType // 0 for a blob
	n       int        // number of elements; bytes for a blob
	pageLen int        // elements of each page but the last
	pages   []page

	source Source // source of an attached tensor, else nil
	from   string // name of the tensor in source
}

// page is the unit of memory, of disk and of transfer. Store.mu guards it. Its bytes
// belong to the caller that pinned it, or to one transfer while busy.
type page struct {
	obj  *object
	num  int // index in obj.pages
	size int // bytes

	buf   []byte // nil when not in memory
	pins  int
	busy  bool // being read or written, or waiting for memory to be read into
	dirty bool // buf is newer than slot
	gone  bool // deleted
	bad   bool // reading ahead failed; the next Acquire says why

	version uint64 // how often the contents were changed

	slot    extent   // on disk; zero length for a page of zeros never written
	crc     uint32   // of the slot
	uses    uses     // commits that refer to slot; unless it is 0, slot must not be overwritten
	written uint64   // Store.syncs when slot had been written
	pending *version // the commit under way has yet to write the page as it is; nil if not

	elements sync.RWMutex // guards buf in ReadAt, WriteAt, LoadTo and put; p is pinned then

	last  int64 // time of the last access, -1 before the first
	key   int64 // the larger, the sooner evicted
	index int   // index in Store.victims, or -1
}

func (p *page) String() string { return pageName(p.obj.name, p.obj.dtype, p.num) }

func pageName(name string, dt snug.DType, num int) string {
	if dt == 0 {
		return fmt.Sprintf("blob %q", name)
	}
	return fmt.Sprintf("page %d of tensor %q", num, name)
}

// Acquire brings the blob key into memory and pins it: its size bytes do not move until
// [Store.Release] was called once for each Acquire. After that they may not be touched. A
// new key becomes a blob of zeros. The memory starts at a multiple of 64 bytes, and all
// callers that hold the blob share it. Acquire waits while the page is read or written,
// and while pages are evicted for it; see also [Store.BeginCommit]. Acquiring a page in
// memory does not allocate.
//
// Errors: [snug.ErrShape] when the blob has another size or size is negative
// or above 1 GiB; [snug.ErrConfig] when key is empty, too long, not UTF-8
// or names a tensor; [snug.ErrNoMemory] when pinned pages leave too few bytes;
// [snug.ErrCorrupt] when the page on disk is damaged.
func (s *Store) Acquire(key string, size int) ([]byte, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	for {
		obj, made, err := s.blob(key, size)
		if err != nil {
			return nil, err
		}
		p := &obj.pages[0]
		switch err := s.pin(context.Background(), p, false); {
		case err == nil:
			return p.buf[:size:size], nil
		case errors.Is(err, errGone):
			// Another goroutine deleted it, or failed to make it.
		default:
			if made {
				s.drop(obj)
			}
			return nil, err
		}
	}
}

// blob returns the object of a blob, and makes it if there is none.
func (s *Store) blob(key string, size int) (obj *object, made bool, err error) {
	if size < 0 || size > maxPage {
		return nil, false, fmt.Errorf("offload: blob %q of %d bytes, want 0 to %d: %w", key, size, maxPage, snug.ErrShape)
	}
	obj, ok := s.objects[key]
	if !ok {
		if err := checkKey(key); err != nil {
			return nil, false, err
		}
		obj = newBlob(key, size)
		s.add(obj)
		return obj, true, nil
	}
	if obj.dtype != 0 {
		return nil, false, fmt.Errorf("offload: %q is a tensor of %s, not a blob: %w", key, obj.dtype, snug.ErrConfig)
	}
	if obj.n != size {
		return nil, false, fmt.Errorf("offload: blob %q has %d bytes, not %d: %w", key, obj.n, size, snug.ErrShape)
	}
	return obj, false, nil
}

// Release undoes one Acquire. dirty says that the bytes may have changed; the change
// becomes durable with the next [Store.Commit]. The error wraps [snug.ErrConfig] when the
// blob is not pinned.
func (s *Store) Release(key string, dirty bool) error {
	if !s.made() {
		return errNoStore
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	obj, ok := s.objects[key]
	if !ok || obj.dtype != 0 {
		return fmt.Errorf("offload: release of %q, which is not a pinned blob: %w", key, snug.ErrConfig)
	}
	return s.unpin(&obj.pages[0], dirty)
}

// Keys returns the names of all blobs and tensors, sorted.
func (s *Store) Keys() []string {
	if !s.made() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.objects))
}

// Has reports whether the store has a blob or tensor of this name.
func (s *Store) Has(key string) bool {
	if !s.made() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.objects[key]
	return ok
}

// Delete removes a blob or tensor; the next [Store.Commit] makes that durable and frees
// its space on disk. The error wraps [snug.ErrConfig] when the store does not have it, or
// when a page of it is pinned.
func (s *Store) Delete(key string) error {
	if err := s.enter(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	for {
		obj, ok := s.objects[key]
		if !ok {
			return fmt.Errorf("offload: delete: there is no %q: %w", key, snug.ErrConfig)
		}
		busy := false
		for i := range obj.pages {
			if p := &obj.pages[i]; p.pins > 0 {
				return fmt.Errorf("offload: delete: %v is pinned: %w", p, snug.ErrConfig)
			}
			busy = busy || obj.pages[i].busy || obj.pages[i].pending != nil
		}
		if !busy {
			s.drop(obj)
			return nil
		}
		s.settled.Wait()
		if s.closed {
			return errClosed
		}
	}
}

// newBlob returns a blob of size zero bytes, not in memory.
func newBlob(name string, size int) *object {
	obj := &object{name: name, n: size, pageLen: size, pages: make([]page, 1)}
	obj.pages[0] = page{obj: obj, size: size, last: -1, index: -1}
	return obj
}

// newTensor cuts n zeros into pages, not in memory. The caller checks the
// numbers.
func newTensor(name string, dt snug.DType, n, pageLen int) *object {
	obj := &object{name: name, dtype: dt, n: n, pageLen: pageLen}
	obj.pages = make([]page, pageCount(n, pageLen))
	for i := range obj.pages {
		size := min(pageLen, n-i*pageLen) * dt.Size()
		obj.pages[i] = page{obj: obj, num: i, size: size, last: -1, index: -1}
	}
	return obj
}

// add registers an object, and grows the bookkeeping so that Acquire of a page in memory
// does not allocate.
func (s *Store) add(obj *object) {
	s.objects[obj.name] = obj
	s.pages += len(obj.pages)
	s.victims = slices.Grow(s.victims, s.pages-len(s.victims))
	s.order.grow(s.pages)
}

// drop forgets an object. None of its pages is pinned or busy, or waits to be written by a commit.
func (s *Store) drop(obj *object) {
	delete(s.objects, obj.name)
	s.pages -= len(obj.pages)
	for i := range obj.pages {
		p := &obj.pages[i]
		if p.buf != nil {
			s.discard(p)
		}
		s.vacate(p)
		p.gone = true
		delete(s.failures, p)
	}
	s.settled.Broadcast()
}

func checkKey(key string) error {
	switch {
	case key == "" || len(key) > maxKey:
		return fmt.Errorf("offload: key of %d bytes, want 1 to %d: %w", len(key), maxKey, snug.ErrConfig)
	case !utf8.ValidString(key):
		return fmt.Errorf("offload: key %q is not UTF-8: %w", key, snug.ErrConfig)
	}
	return nil
}
