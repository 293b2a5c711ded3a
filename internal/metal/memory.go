//go:build metal

package metal

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

const (
	// granule divides the length of every buffer, so that commands which work
	// on words reach its end.
	granule    = 16
	emptyBytes = 256
)

// buffer is one live MTLBuffer.
type buffer struct {
	object  object
	addr    uintptr
	size    int            // bytes that the caller may use
	host    unsafe.Pointer // nil in private memory
	used    uint64         // the last command buffer of the work stream that uses it
	copied  uint64         // and of the copies stream
	foreign int            // how often it was wrapped; 0 for the device's own
}

// mem returns the whole buffer.
func (b *buffer) mem() driver.Mem {
	return driver.Mem{Host: b.host, Addr: b.addr, Size: b.size}
}

// part is a range of a buffer.
type part struct {
	*buffer
	off, n int
}

// table is the live buffers by address.
type table []*buffer

// at returns where a buffer of that address is, or would be.
func (t table) at(addr uintptr) (int, bool) {
	return slices.BinarySearchFunc(t, addr, func(b *buffer, addr uintptr) int { return cmp.Compare(b.addr, addr) })
}

// find returns the part of a buffer that m is.
func (t table) find(m driver.Mem) (part, error) {
	i, exact := t.at(m.Addr)
	if !exact {
		i-- // the last buffer that starts below
	}
	if i >= 0 {
		b := t[i]
		if off := m.Addr - b.addr; off <= uintptr(b.size) && m.Size <= b.size-int(off) {
			return part{b, int(off), m.Size}, nil
		}
	}
	return part{}, fmt.Errorf("metal: %d bytes at %#x are not in a live buffer of this device: %w", m.Size, m.Addr, driver.ErrDevice)
}

// Alloc returns size zeroed bytes: shared with the host on unified memory,
// private to the GPU elsewhere.
func (d *device) Alloc(size int) (driver.Mem, error) {
	return d.alloc(size, !d.unified)
}

// AllocPinned returns size bytes shared with the host.
func (d *device) AllocPinned(size int) (driver.Mem, error) {
	return d.alloc(size, false)
}

// FreePinned gives back what AllocPinned returned.
func (d *device) FreePinned(m driver.Mem) error { return d.Free(m) }

func (d *device) alloc(size int, private bool) (driver.Mem, error) {
	m, full, err := d.allocNow(size, private)
	if !full {
		return m, err
	}
	// Command buffers in flight may hold what was freed.
	if err := d.Sync(); err != nil {
		return driver.Mem{}, err
	}
	m, _, err = d.allocNow(size, private)
	return m, err
}

// allocNow also returns whether the error is that memory is full now.
func (d *device) allocNow(size int, private bool) (m driver.Mem, full bool, err error) {
	pool, err := d.enter()
	if err != nil {
		return driver.Mem{}, false, err
	}
	defer d.leave(pool)
	obj := d.newBuffer(size, private)
	if obj == 0 {
		return driver.Mem{}, true, d.noMemory(size)
	}
	m, err = d.adopt(obj, size)
	return m, false, err
}

// newBuffer returns a buffer, or 0 when there is no memory for it.
func (d *device) newBuffer(size int, private bool) object {
	if size <= 0 || size > d.api.longestBuffer(d.dev)-granule {
		return 0
	}
	options := uintptr(storageShared)
	if private {
		options = storagePrivate
	}
	return d.api.newBuffer(d.dev, (size+granule-1)&^(granule-1), options)
}

// adopt zeroes a new buffer and enters it into the table.
func (d *device) adopt(obj object, size int) (driver.Mem, error) {
	b, err := d.enroll(obj, size)
	if err != nil {
		d.api.release(obj)
		return driver.Mem{}, err
	}
	if b.host != nil {
		clear(unsafe.Slice((*byte)(b.host), size))
		return b.mem(), nil
	}
	if err := d.work.encode(true); err != nil {
		d.drop(b)
		return driver.Mem{}, err
	}
	d.api.fillBuffer(d.work.encoder, obj, 0, d.api.length(obj), 0)
	b.used = d.work.current()
	d.counted(&d.work, &d.copying, size)
	return b.mem(), nil
}

// enroll enters a buffer into the table, under the GPU's address of it or, on
// systems that do not tell, the host's.
func (d *device) enroll(obj object, size int) (*buffer, error) {
	b := &buffer{object: obj, addr: d.api.address(obj), size: size, host: d.api.contents(obj)}
	if b.addr == 0 {
		b.addr = uintptr(b.host)
	}
	if b.addr == 0 {
		return nil, fmt.Errorf("metal: private memory has no address before macOS 13: %w", driver.ErrDevice)
	}
	i, taken := d.buffers.at(b.addr)
	if taken {
		return nil, fmt.Errorf("metal: a buffer at %#x is in use already: %w", b.addr, driver.ErrDevice)
	}
	d.buffers = slices.Insert(d.buffers, i, b)
	return b, nil
}

// drop takes b out of the table and releases it. Command buffers that use it
// retain it until they have finished.
func (d *device) drop(b *buffer) {
	if i, found := d.buffers.at(b.addr); found {
		d.buffers = slices.Delete(d.buffers, i, i+1)
	}
	d.api.release(b.object)
}

// Free gives back what Alloc, AllocPinned or WrapBuffer returned. It does so too when it returns
// the error of earlier work, unless the device is lost or closed: Close frees or has freed everything.
func (d *device) Free(m driver.Mem) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	earlier := d.takeError()
	if d.closed || d.lost != nil {
		return earlier
	}
	defer d.api.scope()()
	return errors.Join(earlier, d.free(m))
}

func (d *device) free(m driver.Mem) error {
	i, found := d.buffers.at(m.Addr)
	if !found {
		return fmt.Errorf("metal: free of %#x, where no buffer starts: %w", m.Addr, driver.ErrDevice)
	}
	b := d.buffers[i]
	if b.foreign > 1 {
		b.foreign--
		return nil
	}
	d.drop(b)
	return nil
}

// WrapBuffer makes an MTLBuffer of this GPU that the caller owns known to the
// device and returns its memory. The device retains it until Free or Close.
// Wrapping it again returns the same memory, to be freed as often.
func (d *device) WrapBuffer(id uintptr) (driver.Mem, error) {
	pool, err := d.enter()
	if err != nil {
		return driver.Mem{}, err
	}
	defer d.leave(pool)
	obj := object(id)
	if obj == 0 || d.api.deviceOf(obj) != d.dev {
		return driver.Mem{}, fmt.Errorf("metal: wrap %#x: want an MTLBuffer of this device: %w", id, driver.ErrDevice)
	}
	for _, b := range d.buffers {
		if b.object == obj && b.foreign > 0 {
			b.foreign++
			return b.mem(), nil
		}
	}
	b, err := d.enroll(obj, d.api.length(obj))
	if err != nil {
		return driver.Mem{}, err
	}
	d.api.retain(obj)
	b.foreign = 1
	return b.mem(), nil
}
