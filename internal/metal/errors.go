//go:build metal

package metal

import (
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
)

// KilledError says that the system stopped a part of the queued work, such as when it took too
// long. What that work and the work queued after it wrote is undefined; the device can be used
// on. One call returns it. It wraps driver.ErrDevice.
type KilledError struct {
	Code   int    // MTLCommandBufferError
	Reason string // what the system says
}

// Error says why the work was stopped and what follows.
func (e *KilledError) Error() string {
	return fmt.Sprintf("metal: queued work was stopped, and what it and later work wrote is undefined: %s (MTLCommandBufferError %d)", e.Reason, e.Code)
}

// Unwrap returns driver.ErrDevice.
func (e *KilledError) Unwrap() error { return driver.ErrDevice }

// LostError says that the device cannot be used any more: a kernel reached memory that it does
// not own, the system refuses the process's work, the GPU was removed. Every later call on
// the device returns it. It wraps driver.ErrDevice.
type LostError struct {
	Code   int    // MTLCommandBufferError
	Reason string // what the system says
}

// Error says why the device was lost and what to do.
func (e *LostError) Error() string {
	return fmt.Sprintf("metal: the device is lost: %s (MTLCommandBufferError %d): open it again", e.Reason, e.Code)
}

// Unwrap returns driver.ErrDevice.
func (e *LostError) Unwrap() error { return driver.ErrDevice }

// noMemory is the error of an allocation of so many bytes.
func (d *device) noMemory(bytes int) error {
	free, total := d.memory()
	return fmt.Errorf("metal: %d bytes wanted, %d of %d free, at most %d in one buffer: %w",
		bytes, free, total, d.api.longestBuffer(d.dev), driver.ErrNoMemory)
}
