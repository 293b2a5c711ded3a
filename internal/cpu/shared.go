package cpu

import (
	"runtime"
	"slices"
	"sync"
)

// Shared is a list of float32 buffers for whole calls, which need large ones, and few. A call
// takes the buffer that was put back last, so that calls one after the other use one
// buffer, on whatever processor they run; [Scratch] keeps one for each processor. A garbage
// collection frees the buffers that no call has used since the collection before.
type Shared struct {
	mu      sync.Mutex
	free    []*[]float32
	unused  int  // how many of free, from the first on, nobody took since the last collection
	watched bool // collected runs after the next collection
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
	last := len(s.free) - 1
	if last < 0 {
		return nil
	}
	b := s.free[last]
	s.free = slices.Delete(s.free, last, last+1)
	s.unused = min(s.unused, last)
	return b
}

// Put gives the buffer back.
func (s *Shared) Put(b *[]float32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, b)
	if !s.watched {
		s.watch()
	}
}

// watch has collected called after the next garbage collection, which finds a value that
// nothing refers to. The value is too large for the allocator to join it with others.
func (s *Shared) watch() {
	s.watched = true
	runtime.AddCleanup(new([4]uint64), (*Shared).collected, s)
}

func (s *Shared) collected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = slices.Delete(s.free, 0, s.unused)
	s.unused = len(s.free)
	if s.watched = false; s.unused > 0 {
		s.watch()
	}
}
