// Package memtest has what the tests of remat and of its tape share: memory that counts,
// and calls of user code that fail on request.
package memtest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
)

// Faults counts the calls of user code and makes some of them fail.
type Faults struct {
	Calls    int             // of user code so far
	Fail     func(int) error // called with the number of each call; may panic
	Problems []string        // what user code was given and should not have been

	mu sync.Mutex
}

// Call is a call of user code, which the test may make fail.
func (f *Faults) Call() error {
	if f.Fail == nil {
		return nil
	}
	f.Calls++
	return f.Fail(f.Calls - 1)
}

// MustCall is a call of user code that has no error to return.
func (f *Faults) MustCall() {
	if err := f.Call(); err != nil && !errors.Is(err, context.Canceled) {
		panic(err)
	}
}

// Expect notes a problem unless ok.
func (f *Faults) Expect(ok bool, format string, args ...any) {
	if !ok {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.Problems = append(f.Problems, fmt.Sprintf(format, args...))
	}
}

// Pool hands out float32 slices and counts their bytes.
type Pool struct {
	Live       map[*float32]int // elements of the slices that are out
	Held, Peak int64            // bytes
}

// NewPool returns a Pool that has handed out nothing.
func NewPool() *Pool { return &Pool{Live: map[*float32]int{}} }

// Get returns a slice of n zeros.
func (p *Pool) Get(n int) []float32 {
	s := make([]float32, n)
	p.Live[&s[0]] = n
	p.Held += int64(4 * n)
	p.Peak = max(p.Peak, p.Held)
	return s
}

// Put takes a slice back and fills it with NaN, so that a later use shows.
func (p *Pool) Put(s []float32) {
	if p.Live[&s[0]] != len(s) {
		panic(fmt.Sprintf("slice of %d elements put, %d are held", len(s), p.Live[&s[0]]))
	}
	delete(p.Live, &s[0])
	p.Held -= int64(4 * len(s))
	for i := range s {
		s[i] = float32(math.NaN())
	}
}

// Exit ends the goroutine.
func Exit(func()) error {
	runtime.Goexit()
	return nil
}
