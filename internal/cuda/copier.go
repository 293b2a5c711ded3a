//go:build cuda || hip

package cuda

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// AllocPinned returns size > 0 bytes of host memory that the device reads and
// writes directly, at the same address as the host. They are not zeroed.
func (d *Device) AllocPinned(size int) (driver.Mem, error) {
	if size <= 0 {
		return driver.Mem{}, fmt.Errorf("%v: allocation of %d pinned bytes: %w", d, size, driver.ErrDevice)
	}
	if err := d.enter(); err != nil {
		return driver.Mem{}, err
	}
	defer d.leave()
	p, err := d.hostMemory(size)
	if err != nil {
		return driver.Mem{}, err
	}
	d.mu.Lock()
	d.pinned[uintptr(p)] = size
	d.mu.Unlock()
	return driver.Mem{Host: p, Addr: uintptr(p), Size: size}, nil
}

// FreePinned gives back what AllocPinned returned. The caller has waited for
// the copies that use it.
func (d *Device) FreePinned(m driver.Mem) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	d.mu.Lock()
	_, known := d.pinned[uintptr(m.Host)]
	delete(d.pinned, uintptr(m.Host))
	d.mu.Unlock()
	if !known {
		return fmt.Errorf("%v: free of pinned memory that was not allocated here: %w", d, driver.ErrDevice)
	}
	return d.check("cuMemFreeHost", d.api.hostFree(m.Host))
}

// StartCopyIn starts a copy of src.Size pinned bytes to dst, after the work
// queued so far, and returns at once. Copies of one direction run in the order of their starts.
func (d *Device) StartCopyIn(dst, src driver.Mem) (driver.Fence, error) {
	return d.startCopy(d.in, dst, src, dst, src, func() error {
		return d.check("cuMemcpyHtoDAsync", d.api.copyToDevice(dst.Addr, src.Host, uint64(src.Size), d.in))
	})
}

// StartCopyOut starts a copy of src.Size bytes to pinned memory dst, after the
// work queued so far, and returns at once.
func (d *Device) StartCopyOut(dst, src driver.Mem) (driver.Fence, error) {
	return d.startCopy(d.out, dst, src, src, dst, func() error {
		return d.check("cuMemcpyDtoHAsync", d.api.copyToHost(dst.Host, src.Addr, uint64(src.Size), d.out))
	})
}

// startCopy makes a stream of copies wait for the queue and starts a copy
// between device and host memory on it.
func (d *Device) startCopy(stream uintptr, dst, src, device, host driver.Mem, start func() error) (driver.Fence, error) {
	if err := first(d.fits(dst, src.Size), d.fits(device, src.Size)); err != nil {
		return nil, err
	}
	if err := d.enter(); err != nil {
		return nil, err
	}
	defer d.leave()
	if err := d.notCapturing("a copy outside the queue"); err != nil {
		return nil, err
	}
	if !d.isPinned(host.Host, src.Size) {
		return nil, fmt.Errorf("%v: a copy outside the queue needs memory of AllocPinned: %w", d, driver.ErrDevice)
	}
	event, err := d.record(d.queue)
	if err != nil {
		return nil, err
	}
	err = d.check("cuStreamWaitEvent", d.api.streamWait(stream, event, 0))
	if err == nil && src.Size > 0 {
		err = start()
	}
	if err == nil { // the event now stands for the end of the copy
		if err = d.check("cuEventRecord", d.api.eventRecord(event, stream)); err != nil {
			d.api.streamSync(stream) // the caller may use the memory after the error
		}
	}
	if err != nil {
		d.recycle(event)
		return nil, err
	}
	return &fence{d: d, event: event}, nil
}

// isPinned reports whether n bytes at p lie in one allocation of AllocPinned.
func (d *Device) isPinned(p unsafe.Pointer, n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if size, ok := d.pinned[uintptr(p)]; ok {
		return n <= size
	}
	for addr, size := range d.pinned {
		if off := uintptr(p) - addr; off < uintptr(size) {
			return uintptr(n) <= uintptr(size)-off
		}
	}
	return false
}

// fence is the end of one copy.
type fence struct {
	d     *Device
	event uintptr
	used  atomic.Bool
}

// Wait blocks the caller until the copy is done.
func (f *fence) Wait() error {
	return f.use(func() error { return f.d.check("cuEventSynchronize", f.d.api.eventSync(f.event)) })
}

// Await makes work queued from now on wait for the copy.
func (f *fence) Await() error {
	return f.use(func() error {
		if err := f.d.notCapturing("Await"); err != nil {
			return err
		}
		return f.d.check("cuStreamWaitEvent", f.d.api.streamWait(f.d.queue, f.event, 0))
	})
}

// use calls do, which is the fence's last use if it succeeds.
func (f *fence) use(do func() error) error {
	d := f.d
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if f.used.Swap(true) {
		return fmt.Errorf("%v: the fence of a copy is used twice: %w", d, driver.ErrDevice)
	}
	if err := do(); err != nil {
		f.used.Store(false)
		return err
	}
	d.recycle(f.event)
	return nil
}
