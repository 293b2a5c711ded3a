package cpu

import (
	"slices"
	"sync"
	"weak"
)

// Shared is a pool of float32 buffers for whole calls, which need large ones, and few. A call
// takes the buffer that was put back last, so that calls one after the other use one buffer,
// on whatever processor they run; [Scratch] keeps one for each processor. Two garbage
// collections free idle buffers.
type Shared struct {
	mu   sync.Mutex
	free weak.Pointer[freeList]
	keep sync.Pool // refers to the list until the second garbage collection
}

type freeList struct{ buffers []*[]float32 }

// list returns the list of free buffers. The caller holds s.mu.
func (s *Shared) list() *freeList {
	l := s.free.Value()
	if l == nil {
		l = new(freeList)
		s.free = weak.Make(l)
		s.keep.Put(l)
	}
	return l
}

// Get returns a buffer of n elements with arbitrary contents.
func (s *Shared) Get(n int) *[]float32 {
	b := s.take()
	if b == nil {
		b = new([]float32)
	}
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	*b = (*b)[:n]
	return b
}

func (s *Shared) take() *[]float32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.list()
	last := len(l.buffers) - 1
	if last < 0 {
		return nil
	}
	b := l.buffers[last]
	l.buffers = slices.Delete(l.buffers, last, last+1)
	return b
}

// Put gives the buffer back.
func (s *Shared) Put(b *[]float32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.list()
	l.buffers = append(l.buffers, b)
}
