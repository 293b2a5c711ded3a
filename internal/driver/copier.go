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
	// StartCopyIn starts a copy of src.Size pinned bytes to dst, after the
	// work queued so far, and returns at once. Copies in and out may run at the same time.
	StartCopyIn(dst, src Mem) (Fence, error)
	// StartCopyOut starts a copy of src.Size bytes to pinned memory dst, after
	// the work queued so far, and returns at once.
	StartCopyOut(dst, src Mem) (Fence, error)
}

// Fence is the end of one copy. It is released by its first Wait or Await.
type Fence interface {
	// Wait blocks the caller until the copy is done.
	Wait() error
	// Await makes work queued from now on wait for the copy.
	Await() error
}
