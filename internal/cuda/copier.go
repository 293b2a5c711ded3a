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

// Point returns the end of the work queued so far.
func (d *Device) Point() (driver.Fence, error) {
	m, err := d.Mark()
	if err != nil {
		return nil, err
	}
	return &fence{d: d, event: m.Event}, nil
}

// StartCopyIn starts a copy of src.Size pinned bytes to dst, after a fence or
// the work queued so far, and returns at once. Copies of one direction run in the order of their starts.
func (d *Device) StartCopyIn(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	return d.startCopy(d.in, dst, src, dst, src, after, func() error {
		return d.check("cuMemcpyHtoDAsync", d.api.copyToDevice(dst.Addr, src.Host, uint64(src.Size), d.in))
	})
}

// StartCopyOut starts a copy of src.Size bytes to pinned memory dst, after a
// fence or the work queued so far, and returns at once.
func (d *Device) StartCopyOut(dst, src driver.Mem, after driver.Fence) (driver.Fence, error) {
	return d.startCopy(d.out, dst, src, src, dst, after, func() error {
		return d.check("cuMemcpyDtoHAsync", d.api.copyToHost(dst.Host, src.Addr, uint64(src.Size), d.out))
	})
}

// startCopy makes a stream of copies wait for a fence or the queue, and starts a copy
// between device and host memory on it.
func (d *Device) startCopy(stream uintptr, dst, src, device, host driver.Mem, after driver.Fence, start func() error) (driver.Fence, error) {
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
	event, err := d.waitOn(stream, after)
	if err == nil && src.Size > 0 {
		err = start()
	}
	if err == nil { // the event now stands for the end of the copy
		if err = d.check("cuEventRecord", d.api.eventRecord(event, stream)); err != nil {
			d.api.streamSync(stream) // the caller may use the memory after the error
		}
	}
	if err != nil {
		if event != 0 {
			d.recycle(event)
		}
		return nil, err
	}
	return &fence{d: d, event: event}, nil
}

// waitOn makes a stream wait for a fence, or for the work queued so far if that is nil. It returns an event that is free
// again, also with an error if it is not 0.
func (d *Device) waitOn(stream uintptr, after driver.Fence) (event uintptr, err error) {
	if after == nil {
		if event, err = d.record(d.queue); err != nil {
			return 0, err
		}
		return event, d.check("cuStreamWaitEvent", d.api.streamWait(stream, event, 0))
	}
	f, ok := after.(*fence)
	if !ok || f.d != d || f.used.Load() {
		return 0, fmt.Errorf("%v: a copy after a fence that is another device's or released: %w", d, driver.ErrDevice)
	}
	if event, err = d.event(); err != nil {
		return 0, err
	}
	return event, d.check("cuStreamWaitEvent", d.api.streamWait(stream, f.event, 0))
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

// fence is the end of one copy, or of queued work.
type fence struct {
	d     *Device
	event uintptr
	used  atomic.Bool // it is released
}

// Wait blocks the caller until the copy is done, and releases the fence.
func (f *fence) Wait() error {
	d := f.d
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if f.used.Swap(true) {
		return f.released()
	}
	if err := d.check("cuEventSynchronize", d.api.eventSync(f.event)); err != nil {
		f.used.Store(false)
		return err
	}
	d.recycle(f.event)
	return nil
}

// Await makes work queued from now on wait for the copy.
func (f *fence) Await() error {
	if f.used.Load() {
		return f.released()
	}
	return f.d.waitFor(f.event)
}

// Release gives the event back.
func (f *fence) Release() {
	if !f.used.Swap(true) {
		f.d.recycle(f.event)
	}
}

func (f *fence) released() error {
	return fmt.Errorf("%v: a fence is used after its release: %w", f.d, driver.ErrDevice)
}
