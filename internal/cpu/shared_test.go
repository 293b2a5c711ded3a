package cpu

import (
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
)

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
	require.LessOrEqual(t, len(s.list().buffers), 8)
}

// TestSharedIsCollected: two collections free what is idle, and no buffer that is in use.
func TestSharedIsCollected(t *testing.T) {
	var s Shared
	used, idle := s.Get(1000), s.Get(1000)
	(*used)[999] = 1
	at := weak.Make(&(*idle)[0])
	s.Put(idle)
	idle = nil
	runtime.GC()
	runtime.GC()
	require.Nil(t, at.Value())
	require.EqualValues(t, 1, (*used)[999])
	s.Put(used)
	require.Same(t, used, s.Get(1000))
}
