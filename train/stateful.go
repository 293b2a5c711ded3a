package train

import "io"

// Stateful is an optional interface of a Model that changes more than its parameters in training, such as averages of
// activations and the state of random numbers. A checkpoint holds this state in a part of its own. A model that is Stateful
// does not resume a checkpoint without the part, such as one from before the model became Stateful, and another model does
// not resume one with it.
//
// New calls ReadState after it has restored the parameters and the optimizer. ReadState reads what WriteState wrote, to its
// end, and checks it before it changes the model; its error should wrap [snug.ErrCorrupt].
//
// With Options.Reducer all ranks have models that are Stateful, or none has. Rank 0 writes, and all ranks read what it
// wrote: what differs between the ranks, such as the state of random numbers, is that of rank 0 after a resume, on all of
// them.
type Stateful interface {
	WriteState(w io.Writer) error
	ReadState(r io.Reader) error
}
