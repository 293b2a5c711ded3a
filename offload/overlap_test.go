package offload

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/snug-ml/snug"
)

// TestOverlappingAccess reads and writes the same elements from many goroutines, in a
// limit of some of the pages: every page that a reader gets was written as a whole by one
// writer. The race detector sees that no byte is read while it is written.
func TestOverlappingAccess(t *testing.T) {
	const pages, pageLen, rounds = 12, 64, 40
	s := memStore(t, Options{HostLimit: 9 * 4 * pageLen}) // each of eight goroutines pins one
	x, err := Create[float32](s, "x", pages*pageLen, pageLen)
	require.NoError(t, err)
	m := newMover(t, snug.CPU(), 4*pageLen, 2)
	whole := func(got []float32) bool { // no page has elements of two writers
		for lo := 0; lo < len(got); lo += pageLen {
			if slices.ContainsFunc(got[lo:lo+pageLen], func(v float32) bool { return v != got[lo] }) {
				return false
			}
		}
		return true
	}
	work := []func(buf []float32, round int) bool{
		func(buf []float32, _ int) bool { return x.ReadAt(buf, 0) == nil && whole(buf) },
		func(buf []float32, _ int) bool {
			_, err := x.LoadTo(m, snug.ViewOf(buf), 0)
			return err == nil && whole(buf)
		},
		func(buf []float32, round int) bool {
			for i := range buf {
				buf[i] = float32(round)
			}
			return x.WriteAt(buf, 0) == nil
		},
		func(buf []float32, round int) bool {
			for i := range buf {
				buf[i] = float32(-round)
			}
			return x.put(buf, 0) == nil // as a step of an Updater does
		},
	}
	var all sync.WaitGroup
	good := make([]bool, 2*len(work))
	for i := range good {
		all.Go(func() {
			buf := make([]float32, pages*pageLen)
			good[i] = true
			for round := range rounds {
				good[i] = good[i] && work[i%len(work)](buf, round)
			}
		})
	}
	all.Wait()
	require.NotContains(t, good, false)
	require.Zero(t, s.pinned)
}
