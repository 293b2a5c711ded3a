//go:build hip

package cuda

import "sync"

// hipAPI is the functions that HIP has in place of some of CUDA's.
type hipAPI struct {
	getDevice    currentFunc
	setDevice    deviceFunc
	streamDevice func(stream uintptr, device *int32) Result

	thread func() int // the number of the calling thread

	mu     sync.Mutex
	before map[int][]int32 // by thread: the devices that calls under way on it have changed
}

// maxLaunchMemory is the block memory that a launch may have of any device of AMD.
const maxLaunchMemory = 64 << 10

// complete makes the functions of a that HIP lacks, from those that it has. HIP has no contexts: a
// thread has a current device. The context of device i is i + 1.
func (h *hipAPI) complete(a *api) {
	h.before = map[int][]int32{}
	a.primaryRetain = func(ctx *uintptr, device int32) Result {
		*ctx = uintptr(device) + 1
		return success
	}
	a.primaryRelease = func(int32) Result { return success }
	a.ctxPush, a.ctxPop = h.push, h.pop
	a.streamCtx = func(stream uintptr, ctx *uintptr) Result {
		var device int32
		r := h.streamDevice(stream, &device)
		*ctx = uintptr(device) + 1
		return r
	}
	// A kernel may have all block memory that there is without being told.
	a.functionSet = func(_ uintptr, attribute, value int32) Result {
		if attribute == functionShared && value > maxLaunchMemory {
			return errInvalidValue
		}
		return success
	}
}

// push makes the device of a context current on the thread.
func (h *hipAPI) push(ctx uintptr) Result {
	device, r := h.getDevice()
	if r != success {
		return r
	}
	if want := int32(ctx - 1); want != device {
		if r := h.setDevice(want); r != success {
			return r
		}
	}
	thread := h.thread()
	h.mu.Lock()
	h.before[thread] = append(h.before[thread], device)
	h.mu.Unlock()
	return success
}

// pop brings back the thread's device from before the last push on it.
func (h *hipAPI) pop() Result {
	thread := h.thread()
	h.mu.Lock()
	all := h.before[thread]
	device := all[len(all)-1]
	h.before[thread] = all[:len(all)-1]
	h.mu.Unlock()
	now, r := h.getDevice()
	if r == success && now != device {
		r = h.setDevice(device)
	}
	return r
}
