//go:build hip && linux

package cuda

import (
	"os"
	"syscall"
	"unsafe"
)

func init() {
	asHIP = func(f *fake, a *api) {
		h := &hipAPI{thread: syscall.Gettid}
		h.getDevice = func() (int32, Result) {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.device(), success
		}
		h.setDevice = func(device uintptr) Result {
			r, end := f.call("cuCtxPushCurrent", true)
			defer end()
			if r == success {
				f.current[syscall.Gettid()] = int32(device)
				f.contexts[syscall.Gettid()] = 1 - int(device)
			}
			return r
		}
		h.streamDevice = func(stream uintptr, device *int32) Result {
			*device = 0
			if stream == 13 {
				*device = 1
			}
			return success
		}
		a.properties = func(p unsafe.Pointer, device int32) Result {
			copy(unsafe.Slice((*byte)(p), 1472)[1160:], "gfx1100:xnack-\x00")
			return success
		}
		a.driverVersion = func(version *int32) Result {
			*version = f.version * 5000 // 6.0 for CUDA 12.0
			return success
		}
		pools := a.deviceAttribute
		a.deviceAttribute = func(v *int32, attribute, device int32) Result {
			if attribute != hipAttributePools {
				return 1
			}
			return pools(v, attributePools, device)
		}
		h.complete(a)
	}
	if os.Getenv("VENDOR") == "hip" {
		testVendor = &amd
	}
}

// device returns the current device of the thread; those of other code have device 1.
func (f *fake) device() int32 {
	if device, ok := f.current[syscall.Gettid()]; ok {
		return device
	}
	return 1
}
