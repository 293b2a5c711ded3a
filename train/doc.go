// Package train trains models: it joins loss scaling, accumulation, clipping, master weights,
// optimizers with small state, pages on disk and checkpoints in the right order.
//
//	t, err := train.New(model, train.Options{
//		Optimizer: quant8.AdamW{WeightDecay: 0.01}, StateBits: 8, Clip: 1,
//		Schedule: train.Cosine(3e-4, 100, 1000), Dir: "run", // checkpoints, gone on from
//	})
//	defer t.Close()
//	for t.Step() < 1000 {
//		report, err := t.Train(ctx, batches(t.Step())) // the micro-batches of one step
//		fmt.Println(t.Step(), report.Loss, report.Skipped)
//	}
//
// A model is anything with named parameters that computes gradients into accumulators, see [Model];
// *transformer.Model is one. A micro-batch has any type.
//
// # A step
//
// Train makes one step of the optimizer:
//
//  1. Each micro-batch runs forward and backward with the loss scale. Its gradients enter the
//     mean of the window (package accum), weighted by [Model].Weight.
//  2. The gradients are divided by the loss scale, checked and measured in one pass (package amp).
//     A NaN or an infinity is an error, or with a loss scale or SkipNonFinite the step is
//     skipped.
//  3. The optimizer updates each parameter with the gradient, scaled to Clip: a parameter of 16 bits
//     through its master weights, a parameter of float32 itself.
//  4. The loss scale of the next step is set, and after SaveEvery steps a checkpoint is written.
//
// With InBackward, a step has one micro-batch, and each parameter is updated as soon as its gradient
// is complete (Lv et al. 2023, arXiv:2306.09782).
//
// # Memory
//
// For n parameters that train, a Trainer holds 4·n bytes of gradients, or with InBackward the largest
// parameter's; 4·n bytes of master weights of 16-bit parameters, or 2 or none by
// Options.Masters; and the state of the optimizer, 8·n bytes with 32 bits or 2.03·n with 8
// (AdamW). Master weights and state lie in pages of a Storage, if there is one. A warm step
// allocates nothing but what the model does.
//
// # Checkpoints
//
// Dir holds the last Keep checkpoints. Each is bound together by checksums, and one process at a
// time owns the folder. New goes on from the newest one: the run then has the bits of a run
// that was never interrupted, if the caller gives step i the same micro-batches. A killed
// process leaves the checkpoint before, or the new one. [OpenFolder] opens the folder before there is a
// model, for programs that go on as their checkpoint says.
package train
