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
