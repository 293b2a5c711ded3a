// Package gomlx trains models of GoMLX with small optimizer state, loss scaling, weighted micro-batches, master weights
// and checkpoints. GoMLX computes the loss and the gradients in one compiled graph; the package train of snug does the
// rest, on the memory of the model's variables.
//
//	backend, err := simplego.New("ops_sequential")
//	first, err := gomlx.Next(dataset) // a batch that shows the shapes
//	dataset.Reset()                   // so that it is trained on
//	t, err := gomlx.New(backend, ctx, modelFn, lossFn, first, gomlx.Options{
//		Optimizer: quant8.AdamW{WeightDecay: 0.004}, StateBits: 8, Clip: 1, Checkpoints: gomlx.Checkpoints{Dir: "run"},
//	})
//	defer t.Close()
//	err = t.Run(context.Background(), dataset, 1000, 4, nil) // to step 1000, with 4 micro-batches in each
//
// This replaces GoMLX's train.Trainer and train.Loop in training. The variables stay in the context: its own
// train.Trainer evaluates them, and its checkpoints hold them.
//
// # Variables
//
// A variable trains if it is marked as trainable and the graph uses it. It has float32, bfloat16 or float16, and is
// updated in place. float16 is untested: simplego v0.26.0 refuses it. The program must not call SetValue on such a variable
// while the Trainer is in use. Variables that the graph changes, such as the state of random numbers, averages of batch
// normalization and counters, change with each micro-batch, as in GoMLX. A checkpoint has their values, and a step that
// fails brings them back. Of other variables that the graph uses a checkpoint has the checksum: a run is not resumed with
// other values, or with other such variables. The variable global_step follows the steps.
//
// Batches may have several shapes and values of Spec. GoMLX builds and keeps a graph for each, without a limit. The graph of
// New decides which variables there are: one that another graph makes, or that only another graph uses or changes, is an
// error of Train. A graph of evaluation may use any variable that exists, and what it changes is brought back.
//
// With Options.Reducer each rank has random numbers and averages of its own. A checkpoint has those of rank 0, and after a
// resume all ranks have them: the run goes on, but a model with dropout or averages does not give the bits of one that was
// never interrupted.
//
// # What GoMLX does and snug does not
//
// A model that changes a variable that trains, or that adds an update for after each step, is an error: of New if the graph
// of New does it, otherwise of Train. So is one that computes the learning rate in the graph of New, unless
// Options.Schedule gives the rate. Without a Schedule it is the parameter learning_rate of the context, or 0.001. The
// parameters of GoMLX's own optimizers, such as clip_nan, have no effect.
//
// A loss that is not finite ends a step only if its gradients are not finite either, as those of package train.
//
// Options.StateBits holds for all variables of 4096 elements or more. quant8.AdamW advises 32 bits for embeddings that are
// not tied to the output layer, and quant8.Options.Keep32, which selects them, is no option here: a model whose embeddings
// have rare gradients keeps StateBits at 32.
//
// # Memory
//
// While a micro-batch runs, its gradients are in tensors of GoMLX, in the types of the variables. The Trainer holds 4
// bytes an element besides, into which they are added, or with plan.InBackward those of the largest variable.
// Conversions between the 16-bit types of GoMLX and snug copy nothing.
//
// # Backends
//
// The package is tested with simplego, the backend in pure Go, made by simplego.New("ops_sequential"). Otherwise that of
// v0.26.0 runs operations in parallel. Then an operation that panics, such as a division of whole numbers by zero, ends the
// process, where it is an error of Train with ops_sequential. It also counts the uses of a result without
// synchronization: the race detector reports it, and on processors other than amd64 it might give wrong numbers. On a backend whose memory the host
// cannot address, GoMLX copies the variables to the device for each micro-batch.
package gomlx
