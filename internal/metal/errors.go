//go:build metal

package metal

import (
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
)

// LostError says that queued work failed in a way that leaves the device's
// memory undefined: a page fault, a timeout, a removed GPU. Every later call on
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
