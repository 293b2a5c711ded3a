package driver

// A Driver and a Backend may do more than they must. These interfaces say what.

// Wrapper is a Driver whose foreign memory is named by handles instead of
// addresses, as Metal's buffers are.
type Wrapper interface {
	Driver
	// WrapBuffer returns the memory behind a handle. Free ends its use and leaves
	// the memory to its owner.
	WrapBuffer(handle uintptr) (Mem, error)
}

// Addresser is a Driver that knows whether its kernels may have addresses of memory in their parameters, in place of
// operands. Metal's cannot: it binds buffers.
type Addresser interface {
	Driver
	TakesAddresses() bool
}

// Doubler is a Driver that knows whether its kernels compute in float64. Metal's cannot.
type Doubler interface {
	Driver
	HasDoubles() bool
}

// Multiplier is a Driver that knows whether its vendor's library multiplies matrices whose elements were decoded before,
// faster than snug's kernels that decode on the way. A device without the interface has no such library.
type Multiplier interface {
	Driver
	// HasProducts loads the library, with its workspace, unless it was loaded before.
	HasProducts() (bool, error)
}

// LaunchCounter is a Driver that counts the kernels that it has launched since it was opened. Products of a vendor's
// library do not count, and neither does the work of a graph that is replayed.
type LaunchCounter interface {
	Driver
	Launches() int64
}

// Capturer is a Driver that records the work of a step and replays it at the
// cost of one launch.
type Capturer interface {
	Driver
	// Capture calls step and records the work that it queues, without running it.
	Capture(step func() error) (Graph, error)
}

// Graph is recorded work.
type Graph interface {
	// Launch queues the work.
	Launch() error
	// Close waits for the queue and frees the graph.
	Close() error
}

// StreamBackend is a Backend whose devices can use a caller's queue.
type StreamBackend interface {
	Backend
	// OpenOn opens device number index with the queue that stream names.
	OpenOn(index int, stream uintptr) (Driver, error)
}

// Streamer is a Driver whose queue is a stream on which another library can queue its work, such as a CUstream.
type Streamer interface {
	Driver
	// Enter returns the stream. Until Leave the goroutine stays on its thread, where the device's context is current.
	Enter() (stream uintptr, err error)
	// Leave ends what Enter has begun.
	Leave()
	// Mark returns the moment at which the work queued so far is done.
	Mark() (Moment, error)
	// Await makes work queued from now on wait for a moment of the same device, also when that was opened another time,
	// and releases the moment.
	Await(m Moment) error
	// Idle reports, without waiting, whether all queued work is done.
	Idle() (bool, error)
}

// Moment is a point in a queue's work. Its first Await releases it.
type Moment struct {
	Of    Driver
	Event uintptr
}
