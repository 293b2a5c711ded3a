package train

import "io"

// Stateful is an optional interface of a Model that changes more than its parameters in training, such as averages of
// activations and the state of random numbers. A checkpoint holds this state in a part of its own, and does not resume
// with a model that has none. New calls ReadState after it has restored the parameters and the optimizer. ReadState reads
// what WriteState wrote, to its end, and checks it before it changes the model; its error should wrap [snug.ErrCorrupt].
// With Options.Reducer rank 0 writes, and all ranks read.
type Stateful interface {
	WriteState(w io.Writer) error
	ReadState(r io.Reader) error
}
