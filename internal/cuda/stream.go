//go:build cuda

package cuda

import (
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
)

var _ driver.Streamer = (*Device)(nil)

// Enter returns the queue, a CUstream, for another library's work. Until Leave the device stays open, and its context is
// current on the thread of the goroutine.
func (d *Device) Enter() (stream uintptr, err error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	if err := d.notCapturing("another library's work"); err != nil {
		d.leave()
		return 0, err
	}
	return d.queue, nil
}

// Leave ends what Enter has begun.
func (d *Device) Leave() { d.leave() }

// Follow makes work queued from now on wait for the work queued so far on other, the same GPU with another queue.
func (d *Device) Follow(other driver.Driver) error {
	o, ok := other.(*Device)
	if !ok || o.handle != d.handle || o.ctx != d.ctx {
		return fmt.Errorf("cuda:%d: a queue of another device cannot be followed: %w", d.index, driver.ErrDevice)
	}
	if o == d {
		return nil
	}
	if err := o.enter(); err != nil {
		return err
	}
	defer o.leave()
	if err := first(o.notCapturing("another queue's wait"), d.notCapturing("a wait for another queue")); err != nil {
		return err
	}
	event, err := o.record(o.queue)
	if err != nil {
		return err
	}
	defer o.recycle(event) // the wait is for what was recorded, also when the event is recorded again
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	return d.check("cuStreamWaitEvent", d.api.streamWait(d.queue, event, 0))
}

// Idle reports whether all queued work is done. Its error is the error of queued work.
func (d *Device) Idle() (bool, error) {
	if err := d.enter(); err != nil {
		return false, err
	}
	defer d.leave()
	if err := d.notCapturing("Idle"); err != nil {
		return false, err
	}
	switch r := d.api.streamQuery(d.queue); r {
	case success:
		return true, nil
	case errNotReady:
		return false, nil
	default:
		return false, d.fail("cuStreamQuery", r)
	}
}
