package kerneltest

import (
	"runtime"
	"testing"
	"time"
)

// AtMostGoroutines fails t unless no more than n goroutines exist, now or within a second: one
// that has told its waiter that it ends is counted until the scheduler has run it to its end.
func AtMostGoroutines(t *testing.T, n int) {
	t.Helper()
	for range 1000 {
		if runtime.NumGoroutine() <= n {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines exist, want at most %d", runtime.NumGoroutine(), n)
}
