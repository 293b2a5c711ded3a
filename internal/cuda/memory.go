//go:build cuda || hip

package cuda

import (
	"fmt"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// poolShare is the part of the device's memory, 1/poolShare, that freed memory
// may keep from the rest of the system between two waits.
const poolShare = 16

// makePool makes the memory pool, or says how much may be kept without one.
func (d *Device) makePool() error {
	var free, total uint64
	if err := d.check("cuMemGetInfo", d.api.memInfo(&free, &total)); err != nil {
		return err
	}
	keep := total / poolShare
	if !d.pools {
		d.kept.limit = int(keep)
		return nil
	}
	props := poolProps{allocType: 1, location: 1, device: d.handle}
	if err := d.check("cuMemPoolCreate", d.api.poolCreate(&d.pool, &props)); err != nil {
		return err
	}
	return d.check("cuMemPoolSetAttribute", d.api.poolSet(d.pool, poolKeep, &keep))
}

// Alloc returns size > 0 zeroed bytes. The error wraps ErrNoMemory when the
// device has no room.
func (d *Device) Alloc(size int) (driver.Mem, error) {
	if size <= 0 {
		return driver.Mem{}, fmt.Errorf("%v: allocation of %d bytes: %w", d, size, driver.ErrDevice)
	}
	if err := d.enter(); err != nil {
		return driver.Mem{}, err
	}
	defer d.leave()
	if err := d.notCapturing("Alloc"); err != nil {
		return driver.Mem{}, err
	}
	b, err := d.alloc(size)
	if err != nil {
		return driver.Mem{}, err
	}
	if err := d.check("cuMemsetD8Async", d.api.memSet(b.addr, 0, uint64(size), d.queue)); err != nil {
		return driver.Mem{}, first(err, d.retire(b))
	}
	d.mu.Lock()
	d.live[b.addr] = b.size
	d.mu.Unlock()
	return driver.Mem{Addr: b.addr, Size: size}, nil
}

// alloc allocates, and once more after it has given back what is free but not
// yet returned to the device.
func (d *Device) alloc(size int) (block, error) {
	b := block{size: size}
	if d.pool == 0 {
		d.mu.Lock()
		found, ok := d.kept.take(size)
		crowded := !ok && d.kept.crowded(size)
		d.mu.Unlock()
		if ok {
			return found, nil
		}
		if crowded {
			if err := d.giveBack(); err != nil {
				return block{}, err
			}
		}
	}
	call, r := d.tryAlloc(&b.addr, size)
	if r == errOutOfMemory {
		if err := d.giveBack(); err != nil {
			return block{}, err
		}
		call, r = d.tryAlloc(&b.addr, size)
	}
	if r == errOutOfMemory {
		return block{}, d.noMemory(call, size)
	}
	if err := d.check(call, r); err != nil {
		return block{}, err
	}
	if d.pool == 0 {
		d.mu.Lock()
		d.kept.add(size)
		d.mu.Unlock()
	}
	return b, nil
}

func (d *Device) tryAlloc(addr *uintptr, size int) (call string, r Result) {
	if d.pool != 0 {
		call, r = "cuMemAllocFromPoolAsync", d.api.poolAlloc(addr, uint64(size), d.pool, d.queue)
	} else {
		call, r = "cuMemAlloc", d.api.memAlloc(addr, uint64(size))
	}
	if r == success && *addr == 0 {
		r = errOutOfMemory
	}
	return call, r
}

// giveBack waits for the queue and returns all freed memory to the device.
func (d *Device) giveBack() error {
	if err := d.sync(); err != nil {
		return err
	}
	if d.pool != 0 {
		return d.check("cuMemPoolTrimTo", d.api.poolTrim(d.pool, 0))
	}
	return d.trim(0)
}

// Free gives back what Alloc returned, after the work queued so far. Copies by
// StartCopyIn and StartCopyOut count as queued from their Await on. During a
// capture it takes effect when the capture ends.
func (d *Device) Free(m driver.Mem) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	d.mu.Lock()
	size, known := d.live[m.Addr]
	later := known && d.capturing.Load()
	delete(d.live, m.Addr)
	if later {
		d.uncaught = append(d.uncaught, block{m.Addr, size})
	}
	d.mu.Unlock()
	switch {
	case !known:
		return fmt.Errorf("%v: free of %#x, which was not allocated here: %w", d, m.Addr, driver.ErrDevice)
	case later:
		return nil
	}
	return d.retire(block{m.Addr, size})
}

// retire frees memory after the work queued so far. If it cannot, Close does.
func (d *Device) retire(b block) error {
	var err error
	if d.pool != 0 {
		err = d.check("cuMemFreeAsync", d.api.freeAsync(b.addr, d.queue))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err != nil:
		d.live[b.addr] = b.size
	case d.pool == 0:
		d.kept.put(b)
	}
	return err
}

// Memory returns the free and total bytes of the device. Memory that the
// device keeps but nobody uses counts as free.
func (d *Device) Memory() (free, total int64, err error) {
	if err := d.enter(); err != nil {
		return 0, 0, err
	}
	defer d.leave()
	return d.memory()
}

func (d *Device) memory() (free, total int64, err error) {
	var f, t, reserved, used uint64
	if err := d.check("cuMemGetInfo", d.api.memInfo(&f, &t)); err != nil {
		return 0, 0, err
	}
	if d.pool != 0 {
		err = first(
			d.check("cuMemPoolGetAttribute", d.api.poolGet(d.pool, poolReserved, &reserved)),
			d.check("cuMemPoolGetAttribute", d.api.poolGet(d.pool, poolUsed, &used)))
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return int64(f+reserved-used) + int64(d.kept.bytes), int64(t), err
}

// hostMemory allocates size bytes of pinned host memory.
func (d *Device) hostMemory(size int) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	switch r := d.api.hostAlloc(&p, uint64(size), hostPortable|hostMapped); r {
	case success:
		return p, nil
	case errOutOfMemory:
		return nil, fmt.Errorf("%v: %d bytes of pinned host memory wanted: %w", d, size, d.api.vendor.failed("cuMemHostAlloc", r))
	default:
		return nil, d.fail("cuMemHostAlloc", r)
	}
}

// freeMemory frees all memory; the streams are idle.
func (d *Device) freeMemory() error {
	var err error
	do := func(call string, r Result) { err = first(err, d.check(call, r)) }
	release := func(addr uintptr) {
		if d.pool != 0 {
			do("cuMemFreeAsync", d.api.freeAsync(addr, d.queue))
		} else {
			do("cuMemFree", d.api.memFree(addr))
		}
	}
	for addr := range d.live {
		release(addr)
	}
	for _, b := range d.uncaught {
		release(b.addr)
	}
	for _, b := range d.kept.blocks {
		release(b.addr)
	}
	for addr := range d.pinned {
		do("cuMemFreeHost", d.api.hostFree(*(*unsafe.Pointer)(unsafe.Pointer(&addr))))
	}
	for _, p := range d.blocks {
		do("cuMemFreeHost", d.api.hostFree(p))
	}
	if d.pool != 0 {
		do("cuStreamSynchronize", d.api.streamSync(d.queue))
		do("cuMemPoolDestroy", d.api.poolDestroy(d.pool))
	}
	return err
}
