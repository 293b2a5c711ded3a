// Package gomlx trains models of GoMLX with small optimizer state, loss scaling, weighted micro-batches, master weights
// and checkpoints. GoMLX computes the loss and the gradients in one compiled graph; the package train of snug does the
// rest, on the memory of the model's variables.
//
//	first, err := gomlx.Next(dataset) // a batch that shows the shapes
//	t, err := gomlx.New(backend, ctx, modelFn, lossFn, first, gomlx.Options{
//		Optimizer: quant8.AdamW{WeightDecay: 0.004}, StateBits: 8, Clip: 1, Dir: "run",
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
// updated in place. The program must not call SetValue on it while the Trainer is in use. Variables that the graph
// changes, such as the state of random numbers, averages of batch normalization and counters, change with each
// micro-batch, as in GoMLX. A checkpoint has their values, and a step that fails brings them back. Of other variables
// that the graph uses a checkpoint has the checksum: a run is not resumed with other values. The variable global_step
// follows the steps.
//
// # What GoMLX does and snug does not
//
// A model that changes a variable that trains, or that adds an update for after each step, is an error. So is one that
// computes the learning rate in the graph, unless Options.Schedule gives the rate. Without a Schedule it is the
// parameter learning_rate of the context, or 0.001. The parameters of GoMLX's own optimizers, such as clip_nan, have no
// effect.
//
// # Memory
//
// While a micro-batch runs, its gradients are in tensors of GoMLX, in the types of the variables. The Trainer holds 4
// bytes an element besides, into which they are added, or with Options.InBackward those of the largest variable.
// Conversions between the 16-bit types of GoMLX and snug copy nothing.
//
// # Backends
//
// The package is tested with simplego, the backend in pure Go. That of v0.26.0 runs operations in parallel unless it is
// made by simplego.New("ops_sequential"), and then counts the uses of a result without synchronization: the race
// detector reports it, and on processors other than amd64 it might give wrong numbers. On a backend whose memory the host
// cannot address, GoMLX copies the variables to the device for each micro-batch.
package gomlx
