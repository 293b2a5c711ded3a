package offload

import (
	"cmp"
	"container/heap"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/snug-ml/snug"
)

// A commit is a snapshot. It has an entry for every page, which says where on disk the contents
// lie that the page had when the commit began. For a clean page, that is the page's slot, which is
// not overwritten from then on. A dirty page gets a new slot when it is written. If it is pinned
// before that, the pin first copies the page for the commit, or writes it.
//
// All functions of this file are called with Store.mu held, and release it during transfers.

// commit is one commit under way.
type commit struct {
	s        *Store
	objects  []*object // by name
	entries  []entry   // of the pages of all objects, in order
	versions []version
	left     int64 // bytes of slots that the versions still need
	err      error
	done     bool
	told     bool // a caller has err
}

// entry says where the contents of a page lie. off is noSlot for zeros.
type entry struct {
	off uint64
	crc uint32
}

// version is the contents of a page that was dirty when a commit began, until the commit has written them.
type version struct {
	p     *page
	entry int    // index of p's entry in commit.entries
	buf   []byte // a copy of the contents; nil as long as p itself still has them
	of    uint64 // p.version when the copy was made
	to    extent // slot for the copy, if p had a slot that no commit used
	need  int64  // bytes of the new slot that the version still needs, or 0
	busy  bool   // buf is being written
}

// uses says which commits refer to a slot.
type uses uint8

const (
	lastCommit uses = 1 << iota // the last commit, or one that may have become the last
	nextCommit                  // the commit under way
)

// retired is a slot that no page uses any more, but that a commit still uses.
type retired struct {
	extent
	uses
}

// outcome says how a commit has ended.
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
				v := version{p: p, entry: len(c.entries)}
				if p.slot.n == 0 || p.uses != 0 {
					v.need = p.slotBytes()
				}
				c.left += v.need
				c.versions = append(c.versions, v)
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

// writeVersions writes, one at a time, the versions of the commit that nothing else has written.
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

// preserve is called before p is pinned. If the commit under way has not written p yet, preserve
// copies p for the commit. If there is no memory for a copy, even without the clean pages that are
// used later than p, preserve writes p. An error ends the commit.
func (s *Store) preserve(p *page) {
	v := p.pending
	if v == nil {
		return
	}
	if buf := s.spare(p); buf != nil {
		s.copyVersion(v, buf)
		return
	}
	if err := s.write(p); err != nil && s.commit != nil {
		s.abandonVersions(s.commit, in(err, "commit"))
	}
}

// spare returns memory for a copy of p. It evicts only pages that are clean and used later than p,
// and returns nil if that is not enough. Unlike evictFor, it does not wait for transfers.
func (s *Store) spare(p *page) []byte {
	for !s.buffers.fits(int64(p.size)) {
		v := s.victims.top()
		if v == nil || v.dirty || v.key <= p.key {
			return nil
		}
		s.discard(v)
		s.stats.Evicted++
	}
	buf, _ := s.buffers.take(p.size)
	return buf
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
	if p.uses == 0 {
		v.to, p.slot = p.slot, extent{}
	}
	s.stats.Copied++
}

// writeCopy writes the copy of a version. If the page has not changed since the copy was made, the
// page is then clean.
func (s *Store) writeCopy(c *commit, v *version) error {
	p := v.p
	to, err := v.to, error(nil)
	if to.n == 0 {
		if to, err = s.alloc(p, v); err != nil {
			return err
		}
	}
	v.busy = true
	s.writing += int64(cap(v.buf))
	sum, err := s.put(v.buf, to)
	s.writing -= int64(cap(v.buf))
	s.buffers.give(v.buf)
	v.buf, v.to, v.busy = nil, extent{}, false
	s.settled.Broadcast()
	s.work.Broadcast()
	if err != nil {
		s.space.release(to)
		return fmt.Errorf("write %v: %w", p, err)
	}
	c.entries[v.entry] = entry{uint64(to.off), sum}
	if p.dirty && p.version == v.of && p.pins == 0 && !p.busy {
		s.vacate(p)
		p.slot, p.crc, p.uses, p.written, p.dirty = to, sum, nextCommit, s.syncs, false
	} else {
		s.retired = append(s.retired, retired{to, nextCommit})
	}
	return nil
}

// abandonVersions ends a commit with an error, and frees the copies and slots of its versions.
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
			if v.to.n > 0 {
				s.space.release(v.to)
			}
		}
	}
	c.left = 0
	s.settled.Broadcast()
}

// settleSlots updates the uses of all slots after a commit, and frees the slots that nothing uses.
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

// alloc returns a new slot for p. If v is not nil, the slot is for v, a version of the commit under
// way. If v is nil, no commit needs the contents yet; the slot then leaves, within DiskLimit, the
// space that the commit under way still needs.
func (s *Store) alloc(p *page, v *version) (extent, error) {
	for s.trimming {
		s.settled.Wait()
	}
	to := s.space.alloc(p.slotBytes())
	end := to.off + to.n
	if s.commit != nil && v == nil {
		end = max(end, s.space.end+s.commit.left)
	}
	if s.opts.DiskLimit > 0 && end > s.opts.DiskLimit {
		s.space.release(to)
		return extent{}, fmt.Errorf("write %v: the page file would have %d bytes, the disk limit is %d: %w", p, end, s.opts.DiskLimit, snug.ErrNoMemory)
	}
	s.high = max(s.high, s.space.end)
	if v != nil {
		v.met(s.commit)
	}
	return to, nil
}

// met notes that v has its slot.
func (v *version) met(c *commit) {
	c.left -= v.need
	v.need = 0
}

// slotBytes returns the bytes of a slot for p.
func (p *page) slotBytes() int64 { return roundUp(int64(p.size), slotAlign) }
