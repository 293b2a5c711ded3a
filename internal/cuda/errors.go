//go:build cuda || hip

package cuda

import (
	"fmt"
	"slices"

	"github.com/snug-ml/snug/internal/driver"
)

// Error is a call of the driver that failed.
type Error struct {
	Call   string // "cuMemAlloc"
	Result Result
	vendor *vendor
}

// Error returns "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)".
func (e *Error) Error() string { return e.Call + ": " + e.vendor.result(e.Result) }

// Unwrap returns the sentinel of package driver that fits.
func (e *Error) Unwrap() error {
	switch e.Result {
	case errOutOfMemory:
		return driver.ErrNoMemory
	case errNoDevice, errNoBinary, errPTXVersion, errNoJITCompiler, errJITDisabled, errNotFound:
		return driver.ErrNotBuilt
	}
	return driver.ErrDevice
}

// LostError says that the device has failed: a kernel accessed memory that is
// not there, or the hardware broke. Every later call on the device returns it.
type LostError struct {
	Device string // "cuda:0"
	Err    *Error // what first told of it; the fault lies in work queued before
}

// Error names the call that told of the failure.
func (e *LostError) Error() string {
	return fmt.Sprintf("%s is lost: %v; %s needs a new process to use it again", e.Device, e.Err, e.Err.vendor.title)
}

// Unwrap returns ErrDevice and the failed call.
func (e *LostError) Unwrap() []error { return []error{driver.ErrDevice, e.Err} }

// check returns the error of a call of the driver.
func (d *Device) check(call string, r Result) error {
	if r == success {
		return nil
	}
	return d.fail(call, r)
}

func (d *Device) fail(call string, r Result) error {
	err := d.api.vendor.failed(call, r)
	if !slices.Contains(d.api.vendor.lost, r) {
		return err
	}
	d.lost.CompareAndSwap(nil, &LostError{d.String(), err})
	return d.lost.Load()
}

// noMemory returns the error of a failed allocation of size bytes on the device.
func (d *Device) noMemory(call string, size int) error {
	free, total, err := d.memory()
	if err != nil {
		return err
	}
	return fmt.Errorf("%v: %d bytes wanted, %d free of %d: %w", d, size, free, total, d.api.vendor.failed(call, errOutOfMemory))
}

// first returns a, or b if a is nil.
func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
