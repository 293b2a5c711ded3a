package driver

// Copier is a Driver that copies between the host and the device concurrently with
// its queue of kernels, so that pages move while kernels run.
type Copier interface {
	Driver
	// AllocPinned returns size > 0 bytes of host memory that the device reads
	// and writes directly. Mem.Host is set.
	AllocPinned(size int) (Mem, error)
	// FreePinned frees memory of AllocPinned. The caller has waited
	// for the copies that use it.
	FreePinned(m Mem) error
	// Point returns the end of the work queued so far.
	Point() (Fence, error)
	// StartCopyIn starts a copy of src.Size pinned bytes to dst and returns at once. The copy
	// begins after the given fence, or, if that is nil, after the work queued so far. Copies in
	// run in the order of their starts, and may run at the same time as copies out.
	StartCopyIn(dst, src Mem, after Fence) (Fence, error)
	// StartCopyOut starts a copy of src.Size bytes to pinned memory dst, and is
	// otherwise as StartCopyIn.
	StartCopyOut(dst, src Mem, after Fence) (Fence, error)
}

// Fence is the end of one copy, or of queued work. It is released by a Wait that succeeds, or by Release, and is not
// used afterwards.
type Fence interface {
	// Wait blocks the caller until the copy or the work is done.
	Wait() error
	// Await makes work queued from now on wait for the copy or the work. It may be called more than once.
	Await() error
	// Release gives the fence back. What waits for it goes on waiting.
	Release()
}
