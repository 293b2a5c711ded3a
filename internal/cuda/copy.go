//go:build cuda || hip

package cuda

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/snug-ml/snug/internal/driver"
)

// CopyIn copies pageable memory through a ring of pinned buffers: the driver's
// own copy from pageable memory may still read it after it has returned, on
// machines where the device reaches all host memory. Short copies share a buffer.
const (
	stages     = 16
	stageBytes = 512 << 10
)

// staging is the ring. Its memory is allocated by the first CopyIn.
type staging struct {
	mu     sync.Mutex
	memory unsafe.Pointer
	events [stages]uintptr // the copies from each full buffer; 0 for none
	next   int             // the buffer that is filled
	used   int             // bytes of it that copies under way may read
}

// CopyIn copies len(src) bytes to dst, after the work queued so far. It returns
// when src may be reused: it waits only when copies of 8 MiB, or of 4 MiB if
// they are shorter than a buffer, are under way.
func (d *Device) CopyIn(dst driver.Mem, src []byte) error {
	if err := d.fits(dst, len(src)); err != nil || len(src) == 0 {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing("CopyIn"); err != nil {
		return err
	}
	d.staging.mu.Lock()
	defer d.staging.mu.Unlock()
	for addr := dst.Addr; len(src) > 0; {
		n := min(len(src), stageBytes)
		if err := d.stage(addr, src[:n]); err != nil {
			return err
		}
		addr, src = addr+uintptr(n), src[n:]
	}
	return nil
}

// stage copies src to a buffer and queues its copy to the device.
func (d *Device) stage(addr uintptr, src []byte) (err error) {
	s := &d.staging
	if s.memory == nil {
		if s.memory, err = d.hostBlock(stages * stageBytes); err != nil {
			return err
		}
	}
	if len(src) > stageBytes-s.used {
		if err := d.nextStage(); err != nil {
			return err
		}
	}
	if e := s.events[s.next]; e != 0 {
		if err := d.check("cuEventSynchronize", d.api.eventSync(e)); err != nil {
			return err
		}
		s.events[s.next] = 0
		d.recycle(e)
	}
	buffer := unsafe.Add(s.memory, s.next*stageBytes+s.used)
	copy(unsafe.Slice((*byte)(buffer), len(src)), src)
	if err := d.check("cuMemcpyHtoDAsync", d.api.copyToDevice(addr, buffer, uint64(len(src)), d.queue)); err != nil {
		return err
	}
	if s.used += (len(src) + stageAlign - 1) &^ (stageAlign - 1); s.used > stageBytes/2 {
		return d.nextStage()
	}
	return nil
}

// stageAlign keeps copies from one buffer apart, in lines of the host's caches.
const stageAlign = 64

// nextStage leaves the buffer that is filled until its copies are done.
func (d *Device) nextStage() (err error) {
	s := &d.staging
	s.used = 0
	if s.events[s.next], err = d.record(d.queue); err != nil {
		return first(err, d.sync()) // the buffer must not change under the copies
	}
	s.next = (s.next + 1) % stages
	return nil
}

// CopyOut waits for the queue and copies len(dst) bytes from src.
func (d *Device) CopyOut(dst []byte, src driver.Mem) error {
	if err := d.fits(src, len(dst)); err != nil || len(dst) == 0 {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing("CopyOut"); err != nil {
		return err
	}
	var pin runtime.Pinner // the copy may end after the call that starts it
	defer pin.Unpin()
	pin.Pin(&dst[0])
	err := d.check("cuMemcpyDtoHAsync", d.api.copyToHost(unsafe.Pointer(&dst[0]), src.Addr, uint64(len(dst)), d.queue))
	return first(err, d.sync()) // also after an error: nothing may write dst later
}

// Copy copies src.Size bytes on the device.
func (d *Device) Copy(dst, src driver.Mem) error {
	if err := first(d.fits(src, src.Size), d.fits(dst, src.Size)); err != nil || src.Size == 0 {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.check("cuMemcpyDtoDAsync", d.api.copyOnDevice(dst.Addr, src.Addr, uint64(src.Size), d.queue))
}

// fits checks that m is memory of the device with n bytes.
func (d *Device) fits(m driver.Mem, n int) error {
	if n > m.Size {
		return fmt.Errorf("%v: copy of %d bytes from or to %d: %w", d, n, m.Size, driver.ErrDevice)
	}
	if n > 0 && m.Addr == 0 {
		return fmt.Errorf("%v: copy from or to memory that is not the device's: %w", d, driver.ErrDevice)
	}
	return nil
}

// hostBlock allocates pinned host memory that Close frees.
func (d *Device) hostBlock(size int) (unsafe.Pointer, error) {
	p, err := d.hostMemory(size)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.blocks = append(d.blocks, p)
	d.mu.Unlock()
	return p, nil
}

// record returns an event that happens after the work queued on stream so far.
func (d *Device) record(stream uintptr) (uintptr, error) {
	e, err := d.event()
	if err != nil {
		return 0, err
	}
	if err := d.check("cuEventRecord", d.api.eventRecord(e, stream)); err != nil {
		d.recycle(e)
		return 0, err
	}
	return e, nil
}

// event returns an event that is not in use.
func (d *Device) event() (uintptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.events); n > 0 {
		e := d.events[n-1]
		d.events = d.events[:n-1]
		return e, nil
	}
	var e uintptr
	if err := d.check("cuEventCreate", d.api.eventCreate(&e, eventBlockingSync|eventDisableTiming)); err != nil {
		return 0, err
	}
	d.made = append(d.made, e)
	return e, nil
}

func (d *Device) recycle(event uintptr) {
	d.mu.Lock()
	d.events = append(d.events, event)
	d.mu.Unlock()
}
