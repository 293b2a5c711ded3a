package cpu

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func (s *Shared) idle() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.free)
}

// TestSharedIsOne: calls one after the other use one buffer, on whatever processor they run.
func TestSharedIsOne(t *testing.T) {
	var s Shared
	first := s.Get(100)
	s.Put(first)
	for range 50 {
		done := make(chan *[]float32)
		go func() {
			b := s.Get(90)
			require.Len(t, *b, 90)
			s.Put(b)
			done <- b
		}()
		require.Same(t, first, <-done)
	}
	require.Len(t, *s.Get(1000), 1000, "a buffer grows")
}

// TestSharedAtOnce: buffers in use at the same time are different ones.
func TestSharedAtOnce(t *testing.T) {
	var s Shared
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 200 {
				b := s.Get(16)
				for j := range *b {
					(*b)[j] = float32(i)
				}
				runtime.Gosched()
				for _, x := range *b {
					require.Equal(t, float32(i), x)
				}
				s.Put(b)
			}
		})
	}
	wg.Wait()
	require.LessOrEqual(t, s.idle(), 8)
}

// TestSharedIsCollected: a collection frees what nobody took since the collection before.
func TestSharedIsCollected(t *testing.T) {
	var s Shared
	a, b, c := s.Get(10), s.Get(10), s.Get(10)
	s.Put(a)
	s.Put(b)
	s.Put(c)
	frees := func(to int, use func()) {
		t.Helper()
		require.Eventually(t, func() bool { use(); runtime.GC(); return s.idle() == to }, 10*time.Second, time.Millisecond)
	}
	frees(1, func() { s.Put(s.Get(10)) }) // one is in use between any two collections
	frees(0, func() {})
	s.Put(a)
	frees(0, func() {}) // collections are watched again
}
