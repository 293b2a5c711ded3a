package train

import (
	"io"
	"iter"

	"github.com/snug-ml/snug"
	"github.com/snug-ml/snug/accum"
	"github.com/snug-ml/snug/quant8"
)

// This file has the optional interfaces of a model, a window and a storage: the Trainer finds out which of them a type implements.
// A declaration lets the compiler check that a type implements one:
//
//	var _ train.Stateful = (*Model)(nil)
//
// A [Model] may also be [Matrices], [Blocks], [Paged], [Buffered] and [Stateful].

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

// Shapes is a [Model] for optimizers that keep less of a matrix than of a vector, such as [quant8.Adafactor]. Shape returns the
// dimensions of a parameter as it lies in memory, outermost first, embeddings and the output layer included. Such an optimizer takes a
// parameter of two dimensions or more as a matrix, whose rows are the first dimension. Without the method it takes all as vectors.
type Shapes interface {
	Shape(name string) []int
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

// Buffered is a [Model] with buffers: values that Backprop changes but that do not train, such as the running averages of a batch
// norm. Buffers yields their names and their float32 values, always in the same order; a model may yield none.
//
// A checkpoint holds the buffers in a part of its own. A model with buffers cannot resume a checkpoint without that part. New wants
// the buffers equal on all ranks, and each step ends with their mean over the ranks on all of them. If a step fails, the Trainer
// restores the buffers of before it; with [plan.Folded], of before the micro-batch that failed. They also do not change in extra passes: those that only measure the norm, and those that a rank runs
// without data because other ranks have more micro-batches.
//
// The Trainer holds 4 bytes an element on the host for this, with several ranks 12.
type Buffered interface {
	Buffers() iter.Seq2[string, snug.View]
}

// Stateful is a [Model] that changes more than its parameters and buffers in training, such as the state of random numbers. A
// checkpoint holds this state in a part of its own. A Stateful model cannot resume a checkpoint without that part, such as one
// from before the model became Stateful, and another model cannot resume one with it.
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
