//go:build linux && (amd64 || arm64)

package cpu

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// cores keeps the goroutines of a loop on cores of their own.
//
// Linux wakes a thread that slept on the core of the one that wakes it, when both ran there last, and it
// has stopped to look for idle cores since all were busy a moment ago. Calls of a few milliseconds
// then share one core, call after call, while the other is idle: on two cores of a Zen 4, after a pause of
// 150 ms, 1.00 cores worked in calls of 2 ms, and 1.8 do with this. A moved thread keeps to the cores of that time,
// also when the process may use more of them later.
type cores struct {
	taken [maxCores / 64]atomic.Uint64
}

// maxCores is more than nearly all machines have. Goroutines on cores beyond stay where they are.
const maxCores = 1024

// reset forgets who took which core.
func (c *cores) reset() {
	for i := range c.taken {
		if c.taken[i].Load() != 0 {
			c.taken[i].Store(0)
		}
	}
}

// claim takes the core that the calling goroutine runs on, and reports whether no other had taken it.
func (c *cores) claim() bool {
	core := currentCore()
	if core < 0 || core >= maxCores {
		return true
	}
	bit := uint64(1) << (core % 64)
	return c.taken[core/64].Or(bit)&bit == 0
}

// move moves the thread of the calling goroutine to a core that nobody has taken, if the process may use
// one. Where a thread may run stays as it was.
func (c *cores) move() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var allowed, free [maxCores / 64]uint64
	n, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(allowed), uintptr(unsafe.Pointer(&allowed)))
	if errno != 0 {
		return
	}
	some := false
	for i := range free {
		free[i] = allowed[i] &^ c.taken[i].Load()
		some = some || free[i] != 0
	}
	if !some {
		return
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, n, uintptr(unsafe.Pointer(&free))); errno == 0 {
		syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, n, uintptr(unsafe.Pointer(&allowed)))
		c.claim()
	}
}

// currentCore returns the core that the calling thread runs on, or -1.
func currentCore() int {
	var core uint32
	if _, _, errno := syscall.RawSyscall(sysGetcpu, uintptr(unsafe.Pointer(&core)), 0, 0); errno != 0 {
		return -1
	}
	return int(core)
}
