package offload

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/internal/crc32c"
	"github.com/snug-ml/snug/internal/files"
)

// All functions of this file except lockAndPin are called with Store.mu held. read, write
// and their callers release it during the transfer; the page is busy then.

// pin brings p into memory and holds it there. With overwrite the caller will write every
// byte, so that the old bytes need not be read.
func (s *Store) pin(ctx context.Context, p *page, overwrite bool) error {
	if p.buf == nil || p.busy || p.pending != nil || p.gone || s.closed {
		if err := s.fetch(ctx, p, overwrite); err != nil {
			return err
		}
	} else {
		s.stats.Hits++
	}
	if p.pins == 0 {
		heap.Remove(&s.victims, p.index)
		s.pinned++
		s.pinBytes += int64(cap(p.buf))
	}
	p.pins++
	p.bad = false
	if s.order.record(p, s.resident()) {
		s.rekey()
	}
	s.wake()
	return nil
}

// lockAndPin is pin for callers that do not hold mu.
func (s *Store) lockAndPin(ctx context.Context, p *page, overwrite bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pin(ctx, p, overwrite)
}

// unpin undoes one pin.
func (s *Store) unpin(p *page, dirty bool) error {
	if s.closed {
		return errClosed
	}
	if p.pins == 0 {
		return fmt.Errorf("offload: release of %v, which is not pinned: %w", p, snug.ErrConfig)
	}
	if dirty && p.obj.source != nil {
		return fmt.Errorf("offload: %v is read-only, and was unpinned as dirty: %w", p, snug.ErrConfig)
	}
	p.dirty = p.dirty || dirty && p.size > 0
	if dirty {
		p.version++
	}
	if p.pins--; p.pins > 0 {
		return nil
	}
	s.pinned--
	s.pinBytes -= int64(cap(p.buf))
	heap.Push(&s.victims, p)
	s.wake()
	return nil
}

// forget is unpin of a page that becomes zeros, unless it has other pins.
func (s *Store) forget(p *page) error {
	if err := s.unpin(p, false); err != nil || p.pins > 0 {
		return err
	}
	s.discard(p)
	s.vacate(p)
	p.version++
	s.settled.Broadcast() // for callers that wait for memory
	return nil
}

// resident returns the number of pages in memory.
func (s *Store) resident() int { return len(s.victims) + s.pinned }

// fetch waits until p is at rest and in memory.
func (s *Store) fetch(ctx context.Context, p *page, overwrite bool) error {
	defer s.stalled(time.Now())
	if err := ctx.Err(); err != nil {
		return in(err, "%v", p)
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.settled.Broadcast()
		})
		defer stop()
	}
	for p.busy {
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
	switch {
	case s.closed:
		return errClosed
	case p.gone:
		return errGone
	case p.buf != nil:
		s.stats.Hits++
		s.preserve(p)
		return nil
	case p.bad:
		if f, ok := s.failures[p]; ok {
			delete(s.failures, p)
			f.Raise()
		}
	}
	if err := s.load(ctx, p, overwrite); err != nil {
		return err
	}
	if p.stored() && !overwrite {
		s.stats.Misses++
	}
	s.preserve(p)
	return nil
}

// wait waits for a change of any page.
func (s *Store) wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return in(err, "wait for a page")
	}
	if s.closed {
		return errClosed
	}
	s.settled.Wait()
	return nil
}

// load brings p, which is at rest on disk, into memory.
func (s *Store) load(ctx context.Context, p *page, overwrite bool) error {
	s.begin(p)
	defer s.end(p)
	for p.buf == nil {
		if err := s.reserve(ctx, p); err != nil {
			return err
		}
		buf, err := s.buffers.take(p.size)
		if err != nil && s.buffers.used == s.pinBytes { // no page can be evicted
			return in(err, "%v", p)
		}
		p.buf = buf // nil if other pages must be evicted
	}
	switch {
	case overwrite && p.pending == nil:
	case p.stored():
		if err := s.read(p); err != nil {
			return err
		}
	default:
		clear(p.buf)
	}
	heap.Push(&s.victims, p)
	return nil
}

func (s *Store) begin(p *page) {
	p.busy = true
	s.busy++
}

func (s *Store) end(p *page) {
	p.busy = false
	s.busy--
	s.settled.Broadcast()
	s.work.Broadcast()
}

// reserve evicts pages until p fits.
func (s *Store) reserve(ctx context.Context, p *page) error {
	need := s.buffers.rounded(int64(p.size))
	for !s.buffers.fits(need) {
		if s.pinBytes+need > s.buffers.limit {
			return fmt.Errorf("offload: %v takes %d bytes, %d of the host limit of %d are pinned: %w", p, need, s.pinBytes, s.buffers.limit, snug.ErrNoMemory)
		}
		v := s.victims.top()
		switch {
		case v == nil || s.buffers.fits(need-s.writing): // a transfer ends soon
			if err := s.wait(ctx); err != nil {
				return err
			}
		case v.dirty:
			if err := s.write(v); err != nil {
				if s.awaitSpace(p, err) {
					continue
				}
				return in(err, "evict a page for %v", p)
			}
		default:
			s.discard(v)
			s.stats.Evicted++
		}
	}
	return nil
}

// awaitSpace waits for the commit under way if err says that the disk is full: the end of the
// commit frees space. It returns false if it did not wait.
func (s *Store) awaitSpace(p *page, err error) bool {
	c := s.commit
	if c == nil || p.pending != nil || !errors.Is(err, snug.ErrNoMemory) && !errors.Is(err, syscall.ENOSPC) {
		return false // a commit does not wait for itself
	}
	for s.commit == c {
		s.settled.Wait()
	}
	return true
}

// discard drops the memory of a page that is not pinned.
func (s *Store) discard(p *page) {
	if p.index >= 0 {
		heap.Remove(&s.victims, p.index)
	}
	s.buffers.give(p.buf)
	p.buf, p.dirty = nil, false
}

// stored reports whether p has contents other than zeros on disk or in a source.
func (p *page) stored() bool { return p.slot.n > 0 || p.obj.source != nil && p.size > 0 }

// read fills p.buf from p's slot, or from its tensor's source. It drops the buffer on an
// error and when the source does not return.
func (s *Store) read(p *page) error {
	start, whole := time.Now(), false
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.stats.ReadTime += time.Since(start)
		if whole {
			s.stats.ReadBytes += int64(p.size)
			p.dirty = p.pending != nil // its slot is in doubt, and a commit needs another
		} else {
			s.discard(p)
		}
	}()
	var err error
	if p.obj.source != nil {
		err = p.loadFromSource()
	} else {
		err = p.check(s.fs, s.data, p.buf)
	}
	whole = err == nil
	return err
}

// write writes p's bytes to disk: over its slot if no commit refers to the slot, else to
// a new slot. After an error p is still dirty.
func (s *Store) write(p *page) error {
	s.begin(p)
	evictable := p.index >= 0
	if evictable { // other goroutines may look for the next page meanwhile
		heap.Remove(&s.victims, p.index)
	}
	s.writing += s.buffers.rounded(int64(p.size))
	err := s.writeSlot(p)
	s.writing -= s.buffers.rounded(int64(p.size))
	if evictable {
		heap.Push(&s.victims, p)
	}
	s.end(p)
	s.hold = err != nil
	return err
}

// writeSlot is write for a page that is busy.
func (s *Store) writeSlot(p *page) (err error) {
	to := p.slot
	if to.n == 0 || p.uses != 0 {
		if to, err = s.alloc(p, p.pending); err != nil {
			return err
		}
	}
	sum, err := s.put(p.buf, to)
	if err != nil {
		if to != p.slot {
			s.space.release(to)
			if v := p.pending; v != nil && v.need == 0 {
				v.need = to.n
				s.commit.left += to.n
			}
		}
		return fmt.Errorf("write %v: %w", p, err)
	}
	if to != p.slot {
		s.vacate(p)
	}
	p.slot, p.crc, p.uses, p.written, p.dirty = to, sum, 0, s.syncs, false
	if v := p.pending; v != nil {
		v.met(s.commit)
		s.commit.entries[v.entry] = entry{uint64(to.off), sum}
		p.pending, p.uses = nil, nextCommit
	}
	return nil
}

// put writes the bytes of a page to a slot, and returns their checksum. When a sync fails meanwhile, the system may have
// lost what was written so far, and put writes it once more.
func (s *Store) put(buf []byte, to extent) (sum uint32, err error) {
	start := time.Now()
	for again := true; again && err == nil; {
		began := s.syncs
		s.mu.Unlock()
		sum, err = writeTo(s.data, buf, to.off)
		s.mu.Lock()
		again = s.doubt > began
	}
	s.stats.WriteTime += time.Since(start)
	s.stats.DiskBytes = max(s.stats.DiskBytes, to.off+int64(len(buf)))
	if err == nil {
		s.stats.WriteBytes += int64(len(buf))
	}
	return sum, err
}

// pieceBytes is the number of bytes of a page that are written, or read, and summed at a
// time, while a cache has them.
const pieceBytes = 128 << 10

// piece returns the number of bytes to transfer at a time. Without the operating system's
// cache it is the whole page, because disks are faster with whole pages.
func piece(data files.File) int {
	if d, ok := data.(*direct); ok && !d.refused.Load() {
		return maxPage
	}
	return pieceBytes
}

// writeTo writes a page to an offset of the page file, and returns its checksum.
func writeTo(data files.File, page []byte, off int64) (sum uint32, err error) {
	step := piece(data)
	for lo := 0; lo < len(page); lo += step {
		part := page[lo:min(lo+step, len(page))]
		sum = crc32c.Update(sum, part)
		if _, err := data.WriteAt(part, off+int64(lo)); err != nil {
			return 0, err
		}
	}
	return sum, nil
}

// vacate frees p's slot, at once or as soon as no commit refers to it any more.
func (s *Store) vacate(p *page) {
	switch {
	case p.slot.n == 0:
	case p.uses != 0:
		s.retired = append(s.retired, retired{p.slot, p.uses})
	default:
		s.space.release(p.slot)
	}
	p.slot, p.uses = extent{}, 0
}
