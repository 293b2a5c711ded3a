package offload

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/snug-ml/snug"
)

// A commit is a snapshot. It has an entry for every page: where the contents lie that the
// page had when the commit began. For a clean page that is its slot, which from then on
// nobody overwrites. For a dirty page it is the slot that the page gets next, as long as
// nobody pins the page before: a pin makes a copy, or writes the page first.
//
// All functions of this file are called with Store.mu held, and release it during transfers.

// commit is what a commit makes durable.
type commit struct {
	s        *Store
	objects  []*object // by name
	entries  []entry   // of all their pages, in order
	versions []version
	err      error
	done     bool
	told     bool // a caller has err
}

// entry says where the contents of a page lie. off is noSlot for zeros.
type entry struct {
	off uint64
	crc uint32
}

// version is a page that was dirty when a commit began, until the commit has written it.
type version struct {
	p     *page
	entry int    // of p in commit.entries
	buf   []byte // a copy, of p as it was; nil while p is as it was
	of    uint64 // p.version of the copy
	busy  bool   // buf is being written
}

// uses says which commits refer to a slot.
type uses uint8

const (
	lastCommit uses = 1 << iota // the last commit, or one that may have become the last
	nextCommit                  // the commit under way
)

// retired is a slot that no page has any more, but a commit.
type retired struct {
	extent
	uses
}

// outcome is what became of a commit.
type outcome int

const (
	refused   outcome = iota // the last commit stays
	inDoubt                  // Open gives the last commit or this one
	published                // this is the last commit
)

// after returns the uses of a slot after the end of the commit under way.
func (o outcome) after(u uses) uses {
	switch {
	case o == refused:
		return u & lastCommit
	case o == inDoubt && u != 0 || u&nextCommit != 0:
		return lastCommit
	}
	return 0
}

// snapshot begins a commit of the present contents of all pages, except pages of attached
// tensors. No page is pinned.
func (s *Store) snapshot() *commit {
	c := &commit{s: s}
	n := 0
	for _, name := range slices.Sorted(maps.Keys(s.objects)) {
		if obj := s.objects[name]; obj.source == nil {
			c.objects = append(c.objects, obj)
			n += len(obj.pages)
		}
	}
	c.entries = make([]entry, 0, n)
	for _, obj := range c.objects {
		for i := range obj.pages {
			p := &obj.pages[i]
			e := entry{off: noSlot}
			switch {
			case p.dirty || s.doubtful(p):
				p.dirty = p.buf != nil
				c.versions = append(c.versions, version{p: p, entry: len(c.entries)})
			case p.slot.n > 0:
				e = entry{uint64(p.slot.off), p.crc}
				p.uses |= nextCommit
			}
			c.entries = append(c.entries, e)
		}
	}
	// The pages that are used next are written first, before somebody pins them.
	slices.SortStableFunc(c.versions, func(a, b version) int { return cmp.Compare(a.p.key, b.p.key) })
	for i := range c.versions {
		c.versions[i].p.pending = &c.versions[i]
	}
	return c
}

// writeVersions writes the pages that the commit needs and nobody else has written, one at
// a time.
func (s *Store) writeVersions(c *commit) error {
	for i := range c.versions {
		v := &c.versions[i]
		for c.err == nil && (v.p.pending == v || v.buf != nil) {
			var err error
			switch p := v.p; {
			case v.buf != nil:
				err = s.writeCopy(c, v)
			case p.busy:
				s.settled.Wait()
			case p.buf == nil: // its slot is in doubt
				err = s.load(context.Background(), p, false)
			default:
				err = s.write(p)
			}
			if err != nil {
				return err
			}
		}
	}
	return c.err
}

// preserve lets the caller pin p although the commit under way has yet to write it: it gives
// the commit a copy if there is memory for one without the clean pages that are used later,
// and else writes p. An error ends the commit.
func (s *Store) preserve(p *page) {
	v := p.pending
	if v == nil {
		return
	}
	if fits, _, _ := s.evictFor(p, int64(p.size)); fits {
		if buf, _ := s.buffers.take(p.size); buf != nil {
			s.copyVersion(v, buf)
			return
		}
	}
	if err := s.write(p); err != nil && s.commit != nil {
		s.abandonVersions(s.commit, in(err, "commit"))
	}
}

// copyVersion copies a page into buf for the commit.
func (s *Store) copyVersion(v *version, buf []byte) {
	p := v.p
	s.begin(p)
	heap.Remove(&s.victims, p.index)
	s.mu.Unlock()
	copy(buf, p.buf)
	s.mu.Lock()
	heap.Push(&s.victims, p)
	s.end(p)
	if p.pending != v { // the commit has failed
		s.buffers.give(buf)
		return
	}
	v.buf, v.of, p.pending = buf, p.version, nil
	s.stats.Copied++
}

// writeCopy writes a version of which the commit has a copy. If its page has not changed
// since, the page is clean then.
func (s *Store) writeCopy(c *commit, v *version) error {
	p := v.p
	to, err := s.alloc(p)
	if err != nil {
		return err
	}
	v.busy = true
	s.writing += int64(cap(v.buf))
	s.mu.Unlock()
	start := time.Now()
	sum, err := writeTo(s.data, v.buf, to.off)
	s.mu.Lock()
	s.stats.WriteTime += time.Since(start)
	s.writing -= int64(cap(v.buf))
	s.buffers.give(v.buf)
	v.buf, v.busy = nil, false
	s.stats.DiskBytes = max(s.stats.DiskBytes, to.off+int64(p.size))
	s.settled.Broadcast()
	s.work.Broadcast()
	if err != nil {
		s.space.release(to)
		return fmt.Errorf("write %v: %w", p, err)
	}
	s.stats.WriteBytes += int64(p.size)
	c.entries[v.entry] = entry{uint64(to.off), sum}
	if p.dirty && p.version == v.of && p.pins == 0 && !p.busy {
		s.vacate(p)
		p.slot, p.crc, p.uses, p.written, p.dirty = to, sum, nextCommit, s.syncs, false
	} else {
		s.retired = append(s.retired, retired{to, nextCommit})
	}
	return nil
}

// abandonVersions ends a commit with an error: nobody keeps pages for it any more.
func (s *Store) abandonVersions(c *commit, err error) {
	if c.err == nil {
		c.err = err
	}
	for i := range c.versions {
		v := &c.versions[i]
		if v.p.pending == v {
			v.p.pending = nil
		}
		if v.buf != nil && !v.busy {
			s.buffers.give(v.buf)
			v.buf = nil
		}
	}
	s.settled.Broadcast()
}

// settleSlots updates the uses of all slots after a commit, and frees those without any.
func (s *Store) settleSlots(o outcome) {
	for _, obj := range s.objects {
		for i := range obj.pages {
			obj.pages[i].uses = o.after(obj.pages[i].uses)
		}
	}
	kept := s.retired[:0]
	for _, r := range s.retired {
		if r.uses = o.after(r.uses); r.uses == 0 {
			s.space.release(r.extent)
		} else {
			kept = append(kept, r)
		}
	}
	s.retired = kept
}

// alloc returns a new slot for p.
func (s *Store) alloc(p *page) (extent, error) {
	for s.trimming {
		s.settled.Wait()
	}
	to := s.space.alloc(roundUp(int64(p.size), slotAlign))
	if end := to.off + to.n; s.opts.DiskLimit > 0 && end > s.opts.DiskLimit {
		s.space.release(to)
		return extent{}, fmt.Errorf("write %v: the page file would have %d bytes, the disk limit is %d: %w", p, end, s.opts.DiskLimit, snug.ErrNoMemory)
	}
	return to, nil
}
