//go:build linux && (amd64 || arm64)

package cpu

import (
	"runtime"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// affinity returns the cores on which the calling thread may run.
func affinity(t *testing.T) (mask [maxCores / 64]uint64) {
	t.Helper()
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(mask), uintptr(unsafe.Pointer(&mask)))
	require.Zero(t, errno)
	return mask
}

// A thread moves to a core that nobody has taken, and may then run where it could before.
func TestCores(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := affinity(t)
	require.GreaterOrEqual(t, currentCore(), 0)

	var c cores
	require.True(t, c.claim())
	c.move()
	require.Equal(t, before, affinity(t))

	for i := range c.taken { // nowhere to go
		c.taken[i].Store(^uint64(0))
	}
	require.False(t, c.claim())
	c.move()
	require.Equal(t, before, affinity(t))
	c.reset()
	require.True(t, c.claim())
}

func TestMoveReachesTheFreeCore(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("there is one core")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	allowed := affinity(t)
	var only int // the one that is free
	for allowed[only/64]>>(only%64)&1 == 0 || only == currentCore() {
		only++
	}
	var c cores
	for i := range c.taken {
		c.taken[i].Store(^uint64(0))
	}
	c.taken[only/64].And(^(uint64(1) << (only % 64)))
	c.move()
	require.False(t, c.claim(), "the move has claimed it")
	require.Equal(t, ^uint64(0), c.taken[only/64].Load())
	require.Equal(t, allowed, affinity(t))
}

// Loops that are long enough for helpers to move have the same results, from several goroutines at once.
func TestLongLoops(t *testing.T) {
	slow := NewTask(func(sums *[]int, i int) {
		for start := time.Now(); time.Since(start) < 20*time.Microsecond; {
		}
		(*sums)[i] = i + 1
	})
	done := make(chan []int)
	for range 4 {
		go func() {
			sums := make([]int, 64)
			for range 5 {
				time.Sleep(2 * time.Millisecond)
				slow.Run(len(sums), sums)
			}
			done <- sums
		}()
	}
	for range 4 {
		for i, got := range <-done {
			require.Equal(t, i+1, got)
		}
	}
}
