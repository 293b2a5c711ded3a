// Package train is a training loop. It joins loss scaling, gradient accumulation, clipping, master weights, optimizers
// with small state, pages on disk and checkpoints in the right order.
//
//	t, err := train.New(model, train.Options{
//		StateBits: 8, Clip: 1,
//		Schedule:    train.Cosine(3e-4, 100, 1000),
//		Checkpoints: train.Checkpoints{Dir: "run"}, // resumes the newest
//	})
//	defer t.Close()
//	for t.Step() < 1000 {
//		report, err := t.Train(ctx, batches(t.Step())) // the micro-batches of one step
//		fmt.Println(t.Step(), report.Loss, report.Skipped)
//	}
//
// A model is any type with named parameters that adds gradients to accumulators, see [Model]; *transformer.Model is
// one. The micro-batches may have any type.
//
// # A step
//
// Train makes one step of the optimizer:
//
//  1. The model runs each micro-batch forward and backward with the loss scale. The window (package accum) takes the
//     mean of the gradients, weighted by [Model].Weight.
//  2. One pass divides the gradients by the loss scale, checks them and measures their norm (package amp). A NaN or an
//     infinity is an error; with a loss scale or SkipNonFinite it skips the step instead.
//  3. The optimizer updates each parameter with its gradient, clipped to the norm Clip: a parameter of 16 bits through
//     its master weights, a parameter of float32 directly.
//  4. The Trainer sets the loss scale of the next step, and after every SaveEvery steps it writes a checkpoint.
//
// With [plan.InBackward] as Gradients, a step has one micro-batch, and each parameter is updated as soon as its gradient
// is complete (Lv et al. 2023, arXiv:2306.09782). With [plan.Folded] it has several, whose gradients are folded into
// the optimizer's state one by one (Zhang et al. 2023, arXiv:2305.19982).
//
// # Averages
//
// With an optimizer that Averages, see [quant8.Traits], a model is evaluated and saved with averages of the parameters in training. Evaluate,
// Close and [Trainer.Average] put the averages into the model. The next Train restores the parameters in training. The
// learning rate should be constant after the warm-up, as with the schedule Linear(peak, 1, warmup, steps).
//
// # Ranks
//
// With Options.Reducer several Trainers make a step together, each with the micro-batches of its rank: in goroutines, by
// [accum.Local], or in processes, by package dist/mpi or dist/nccl. Each has a whole model, and all models stay equal. With
// Options.Shard each rank holds a part of the optimizer's state, of the master weights and of the gradients (ZeRO-1 and
// ZeRO-2). A checkpoint is the same with any Shard and any number of ranks.
//
// With an [accum.Pages] as Reducer, which is also the Pages of the model, each rank holds a part of the matrices of the
// model, frozen or not, and the ranks gather a matrix when an operation uses it (ZeRO-3; Rajbhandari et al. 2020,
// arXiv:1910.02054):
//
//	pages, err := accum.NewPages(world, accum.PagesOptions{})
//	model, err := transformer.Open(dir, transformer.Options{Pages: pages, PageFloats: true})
//	t, err := train.New(model, train.Options{Ranks: train.Ranks{Reducer: pages, Shard: plan.ShardWeights}})
//
// Losses and weights are those of ranks that each hold all weights, up to the rounding of the gradients' norm. All ranks
// make as many passes over the model, see Options.Reducer. A rank sends its part of the weights to each other rank twice
// in a micro-batch, for the forward and the backward pass, and more often with a plan that computes activations again.
//
// # Forward passes alone
//
// With an optimizer that is ForwardOnly a step evaluates its micro-batches twice. It holds no gradients, no master weights and no state,
// so that it takes no more memory than evaluation. The model needs no backward pass, see [ForwardOnly].
//
// # Memory
//
// For n parameters that train, a Trainer holds
//
//	gradients        4·n bytes; with plan.InBackward 4 bytes an element of the largest parameter, and of the next largest
//	                 while the gradient of the largest is incomplete, such as that of a tied embedding
//	master weights   4·n, 2·n, n or 0 bytes for parameters of 16 bits, by Options.Masters
//	optimizer state  of the default rule 8·n bytes in 32 bits, 2.03·n in 8
//
// With Options.Shard the master weights and the state of a rank are those of its part, 1/ranks of all. With
// plan.ShardGradients a rank holds its part of the gradients, and two buckets, or more where the gradients of several
// buckets are incomplete at one time. Parameters of 16 bits are sent through memory of
// Options.Bucket elements.
//
// With Options.Storage the master weights and the state lie in its pages. From the second step on, the Trainer
// allocates nothing.
//
// # Checkpoints
//
// Dir holds the newest Keep checkpoints, whose parts are bound together by checksums. One process at a time owns the
// folder. New resumes the newest checkpoint: if the caller gives each step the same micro-batches as before, the run
// ends with the same bits as a run that was never interrupted. A process that is killed while it writes a checkpoint
// leaves the previous one or the complete new one. A program that needs to read its checkpoint before it makes a model
// opens the folder with [OpenFolder]. A model with more state than its parameters is a [Stateful].
package train
