package snug

import (
	"errors"
	"fmt"

	"github.com/snug-ml/snug/internal/driver"
)

// Every error that snug finds wraps one of these; errors of the operating
// system, of contexts and of a caller's functions are wrapped as they are. Test
// with [errors.Is].
var (
	// ErrShape says that lengths, dimensions or strides do not fit together.
	ErrShape = errors.New("snug: shape mismatch")
	// ErrDType says that an element type is not accepted where it was given.
	ErrDType = errors.New("snug: element type not accepted")
	// ErrDevice says that operands lie on different devices, on a closed
	// device, or on one that lacks the operation.
	ErrDevice = driver.ErrDevice
	// ErrConfig says that an option is out of its range, or that a method was
	// called in a state that does not allow it.
	ErrConfig = errors.New("snug: invalid configuration")
	// ErrNonFinite says that a NaN or an infinity was met where the policy
	// forbids it.
	ErrNonFinite = errors.New("snug: non-finite value")
	// ErrCorrupt says that saved state is damaged, foreign or of a newer
	// version.
	ErrCorrupt = errors.New("snug: corrupt data")
	// ErrNoMemory says that memory of a device or under a limit is exhausted, or
	// that a length on the CPU is more than Go can address.
	ErrNoMemory = driver.ErrNoMemory
	// ErrNotBuilt says that a backend is not part of this build or that its
	// driver is missing.
	ErrNotBuilt = driver.ErrNotBuilt
)

// NonFinite is the NaNs and infinities of one parameter's gradient, as every
// package reports them.
type NonFinite struct {
	Name  string  // of the parameter
	Count int     // how many there are
	Index int     // element of the first
	Value float32 // of the first
	Micro int     // micro-batch of the window that brought them, from 0; -1 if that is not known
}

// String returns the form "name[index] = value, the first of count, from
// micro-batch micro", with what is known.
func (n NonFinite) String() string {
	s := fmt.Sprintf("%s[%d] = %v", n.Name, n.Index, n.Value)
	if n.Count > 1 {
		s += fmt.Sprintf(", the first of %d", n.Count)
	}
	if n.Micro >= 0 {
		s += fmt.Sprintf(", from micro-batch %d", n.Micro)
	}
	return s
}
