package cpu

import "sync"

// Scratch is a pool of float32 buffers for the tiles of running workers. At
// most one buffer per running worker is in use; the garbage collector frees
// idle ones.
type Scratch struct{ pool sync.Pool }

// Get returns a buffer of n elements with arbitrary contents.
func (s *Scratch) Get(n int) *[]float32 {
	b, _ := s.pool.Get().(*[]float32)
	if b == nil {
		b = new([]float32)
	}
	if cap(*b) < n {
		*b = make([]float32, n)
	}
	*b = (*b)[:n]
	return b
}

// Put gives the buffer back.
func (s *Scratch) Put(b *[]float32) { s.pool.Put(b) }
