package train

import (
	"io"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/quant8"
)

// This file has all that a model, a window and a storage may be besides. A type that is meant to be one of them says so
// where it is declared, and the compiler checks it:
//
//	var _ train.Stateful = (*Model)(nil)
//
// A Model may be [Matrices], [Blocks], [Paged], [Buffered] and [Stateful].

// Window takes the gradients of a backward pass. Into returns the float32 accumulator of a parameter, which has the
// length of the parameter, and how a gradient enters it; further calls for the same name in one micro-batch return a
// Beta of 1. The Window of a [Trainer] is also a [Completer], and with [plan.InBackward] and [plan.Folded] a [OneHolder].
type Window = interface {
	Into(name string) (acc snug.View, into snug.Into, err error)
}

type (
	// Completer is a [Window] to which a model says that the gradient of a parameter is complete. Gradients other than
	// [plan.SumF32] need a model that does; [plan.ShardGradients] saves memory, and ranks wait less.
	Completer = accum.Completer
	// OneHolder is a [Window] for which a model should complete a gradient before it begins the next one.
	OneHolder = accum.OneHolder

	// Prefetcher is a [Storage] that reads ahead.
	Prefetcher = quant8.Prefetcher
	// Grouper is a [Storage] that holds several blobs at once.
	Grouper = quant8.Grouper
	// Locator is a [Storage] around another one.
	Locator = quant8.Locator
)

// Matrices is a [Model] for optimizers whose Unit is quant8.Matrix, which need it. Matrix returns the
// rows and columns of a parameter whose gradient they may project: a matrix of a layer. It returns 0, 0 for others, such
// as embeddings, the output layer and vectors, which take the rule of single elements.
type Matrices interface {
	Matrix(name string) (rows, cols int)
}

// Blocks is a [Model] for optimizers with Blocks, see [quant8.Traits]. Block returns how many elements of a parameter share a
// second moment, see [quant8.ParamOptions]. 0 stands for all elements; so does a model without the method.
type Blocks interface {
	Block(name string) (elements int)
}

// Paged is a [Model] whose parameters lie in an [accum.Pages], as those of ZeRO-3 do. Paged returns the
// key in the Pages, the type and the number of elements of a parameter that lies there, and an empty key for others. The
// elements that Trainable yields for such a parameter are empty.
type Paged interface {
	Paged(name string) (key string, dt snug.DType, elements int)
}

// Buffered is a [Model] with values that Backprop changes and that do not train, such as the running averages of a batch norm.
// Buffers yields them, of float32, always in the same order; a model may yield none.
//
// A checkpoint holds them in a part of its own, without which a model with buffers does not resume one. After a step they are, on
// all ranks, the mean over the ranks; New wants them equal on all. A step that fails leaves them as they were before it, and so do
// passes that only measure a norm or that other ranks wait for. The Trainer holds 4 bytes an element for this, and with ranks 8 more.
type Buffered interface {
	Buffers() iter.Seq2[string, snug.View]
}

// Stateful is a [Model] that changes more than its parameters and buffers in training, such as the state of random numbers. A checkpoint holds this state in a part of its own. A model that is Stateful
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
