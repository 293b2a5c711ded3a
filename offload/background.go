package offload

import (
	"container/heap"
	"slices"

	"github.com/snug-ml/snug/internal/cpu"
)

// The background goroutines only do ahead of time what Acquire does itself. The
// goroutines of readAhead read the pages that are used next. The goroutines of
// writeBehind write the dirty pages that are evicted for them. Acquire meets and reports
// failures.

// Prefetch says that the pages of these blobs are used soon. They are read in the
// background as far as HostLimit has free bytes. At most PrefetchDepth pages wait to be
// read; further pages are ignored, and so are keys without a page on disk. Prefetching
// evicts pages that are used later or, while no order is known, pages that were last used
// before this call. Prefetch never fails and never waits for I/O.
func (s *Store) Prefetch(keys ...string) {
	if !s.made() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if obj, ok := s.objects[key]; ok && obj.dtype == 0 {
			s.hint(&obj.pages[0])
		}
	}
}

// Together returns how many blobs of size bytes a step of an optimizer should pin at
// once, so that its workers wait for one another less often: the number that fits into an
// eighth of HostLimit, but from 1 to 8. The optimizers of package quant8 call it.
func (s *Store) Together(size int) int {
	const most = 8
	switch {
	case !s.made() || size < 0:
		return 1
	case s.opts.HostLimit == 0:
		return most
	}
	return int(max(1, min(most, s.opts.HostLimit/8/max(1, int64(size)))))
}

// hint asks for p to be read ahead.
func (s *Store) hint(p *page) {
	if s.closed || !readable(p) || len(s.hints) == s.opts.PrefetchDepth || slices.Contains(s.hints, p) {
		return
	}
	s.hints = append(s.hints, p)
	if s.order.period == 0 {
		p.key = -s.order.now
	}
	s.work.Broadcast()
}

// readable reports whether p can be read ahead.
func readable(p *page) bool { return p.buf == nil && !p.busy && !p.bad && !p.gone && p.stored() }

// coming returns the page that is wanted after i other pages, nil at the end.
func (s *Store) coming(i int) *page {
	if i < len(s.hints) {
		return s.hints[i]
	}
	if i -= len(s.hints); i < s.opts.PrefetchDepth {
		return s.order.ahead(i)
	}
	return nil
}

// wake starts the background goroutines if a coming page is not in memory.
func (s *Store) wake() {
	for i := 0; ; i++ {
		p := s.coming(i)
		if p == nil {
			return
		}
		if readable(p) {
			s.work.Broadcast()
			return
		}
	}
}

// readAhead reads coming pages until the store closes. When a Source ends the goroutine,
// another readAhead takes over.
func (s *Store) readAhead() {
	defer s.wg.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := true
	defer func() {
		if ended {
			s.wg.Add(1)
			go s.readAhead()
		}
	}()
	for !s.closed {
		p := s.nextRead()
		if p == nil {
			s.work.Wait()
			continue
		}
		if p.buf, _ = s.buffers.take(p.size); p.buf == nil {
			s.work.Wait() // the limit is lower now, or nobody has memory
			continue
		}
		s.readOne(p)
	}
	ended = false
}

// readOne reads p ahead; p has memory. A panic or Goexit of a Source is kept for the
// caller that pins the page.
func (s *Store) readOne(p *page) {
	s.begin(p)
	defer s.end(p)
	var failure cpu.Failure
	returned := false
	defer func() {
		if !returned {
			p.bad = true
			s.failures[p] = failure
		}
	}()
	defer failure.Catch(&returned)
	if err := s.read(p); err != nil {
		p.bad = true
	} else {
		s.stats.Prefetched++
		heap.Push(&s.victims, p)
	}
	returned = true
}

// nextRead returns the first coming page that is on disk and fits, nil
// when there is none or a dirty page must be written first.
func (s *Store) nextRead() *page {
	for len(s.hints) > 0 {
		p, fits := s.hints[0], false
		if readable(p) {
			var dirty *page
			var soon bool
			if fits, dirty, soon = s.evictFor(p, int64(p.size)); soon || dirty != nil && !s.hold {
				return nil
			}
		}
		s.hints = slices.Delete(s.hints, 0, 1)
		if fits {
			return p
		}
	}
	for i := 0; ; i++ {
		p := s.coming(i)
		if p == nil {
			return nil
		}
		if !readable(p) {
			continue
		}
		if fits, _, _ := s.evictFor(p, int64(p.size)); fits {
			return p
		}
		return nil
	}
}

// evictFor drops clean pages that are used later than p until size bytes fit. It reports
// whether they fit. If a dirty page must be written first, it returns the page. If the
// writes in progress will free enough bytes, it drops no more pages.
func (s *Store) evictFor(p *page, size int64) (fits bool, dirty *page, soon bool) {
	for !s.buffers.fits(size) {
		v := s.victims.top()
		switch {
		case s.buffers.fits(size - s.writing):
			return false, nil, true
		case v == nil || v.key <= p.key:
			return false, nil, false
		case v.dirty:
			return false, v, false
		}
		s.discard(v)
		s.stats.Evicted++
	}
	return true, nil, false
}

// writeBehind writes pages that are about to be evicted until the store
// closes.
func (s *Store) writeBehind() {
	defer s.wg.Done()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed {
		p := s.nextWrite()
		if p == nil {
			s.work.Wait()
			continue
		}
		_ = s.write(p) // p stays dirty; the caller that needs its memory writes again and reports
	}
}

// nextWrite returns the dirty page that must be evicted for a coming page.
func (s *Store) nextWrite() *page {
	if s.hold {
		return nil
	}
	need := int64(0)
	for i := 0; ; i++ {
		p := s.coming(i)
		if p == nil {
			return nil
		}
		if !readable(p) {
			continue
		}
		need += s.buffers.rounded(int64(p.size))
		switch fits, dirty, soon := s.evictFor(p, need); {
		case dirty != nil:
			return dirty
		case !fits && !soon:
			return nil
		}
	}
}
