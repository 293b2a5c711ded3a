//go:build cuda || hip

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

// Mark returns the moment at which the work queued so far is done.
func (d *Device) Mark() (driver.Moment, error) {
	if err := d.enter(); err != nil {
		return driver.Moment{}, err
	}
	defer d.leave()
	if err := d.notCapturing("Mark"); err != nil {
		return driver.Moment{}, err
	}
	event, err := d.record(d.queue)
	return driver.Moment{Of: d, Event: event}, err
}

// Await makes work queued from now on wait for a moment of this GPU, of any queue.
func (d *Device) Await(m driver.Moment) error {
	o, ok := m.Of.(*Device)
	if !ok || o.handle != d.handle || o.ctx != d.ctx {
		return fmt.Errorf("%v: a moment of another device cannot be awaited: %w", d, driver.ErrDevice)
	}
	if err := o.enter(); err != nil { // whose events end with it
		return err
	}
	defer o.leave()
	if err := o.notCapturing("Await"); err != nil { // an error in HIP
		return err
	}
	if err := d.waitFor(m.Event); err != nil {
		return err
	}
	o.recycle(m.Event) // the wait is for what was recorded, also when the event is recorded again
	return nil
}

func (d *Device) waitFor(event uintptr) error {
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.notCapturing("Await"); err != nil {
		return err
	}
	return d.check("cuStreamWaitEvent", d.api.streamWait(d.queue, event, 0))
}

// Idle reports whether all queued work is done. Its error is the error of queued work, which AMD's driver does not tell.
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
