package driver

// Wrapper is a Driver whose foreign memory is named by handles instead of
// addresses, as Metal's buffers are.
type Wrapper interface {
	Driver
	// WrapBuffer returns the memory behind a handle. Free ends its use and leaves
	// the memory to its owner.
	WrapBuffer(handle uintptr) (Mem, error)
}
