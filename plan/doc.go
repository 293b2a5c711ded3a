// Package plan predicts the memory and the time of training, and finds the choices that fit
// within a limit.
//
//	model, err := plan.GPT{Vocab: 32000, Dim: 768, Layers: 12, Heads: 12, Context: 1024}.Model()
//	device, err := plan.DeviceNamed("24GB")
//	p, err := plan.Best(plan.Task{Model: model, Device: device, Batch: 32}.Fit(0)) // 0: all of its memory
//	var miss *plan.MissError
//	if errors.As(err, &miss) {
//		fmt.Println("missing", meter.FormatBytes(miss.Missing()), "try", miss.Changes)
//	}
//	fmt.Println(p.Run.Micro, p.Run.Window, p.Run.Compute, p.Run.StateBits, p.Run.Remat)
//	err = p.WriteTable(os.Stdout)
//	err = p.Apply(&model, &training) // options of packages transformer and train
//
// [Task.Fit] is an iterator over the plans that fit, the fastest first, and [Best] takes that. It offers what packages
// transformer and train can do; for other programs see Task.Own.
// [Task.Predict] does the opposite: for a given [Run] it returns the bytes of each
// component on each tier, and the time of a step. Package meter counts the bytes that a run
// holds. The command snug plan finds a plan for a preset or a published folder:
//
//	go run github.com/snug-ml/snug/cmd/snug plan -model llama-2b -device-memory 24GB
//
// # Bytes
//
// With N parameters, n of them trained, elements of E bytes in weights and activations, and micro-batches of B samples:
//
//	weights          E·N; frozen weights in 4 or 8 bits as package qlora holds them
//	master weights   4n, 2n or none, by the form of package amp; none with float32 and for
//	                 adapters, which are float32
//	gradients        4n or 2n; with updates in the backward pass 4 bytes an element of the
//	                 largest parameter, or of a tied embedding and the next largest, and of two vectors;
//	                 besides, those of the other matrices that share an input, or the gradient of this
//	                 input if it is smaller; with Tiles all of a layer in tiles
//	optimizer state  the bytes of package quant8 for the rule and its bits, such as 8n or 2.03n
//	activations      the peak of the plan, by [remat.Plan.Simulate], of a chain whose layers
//	                 keep and hold B times what [Layer] says; statistics of the last norm
//	workspace        the largest that a layer or the loss needs at a time, by the functions of
//	                 packages fused and attention; and the optimizer's workspace
//	allowance        a share of activations and workspace
//
// A total is the sum of the peaks of all components: an upper bound of the bytes that are
// held at one time. When weights or gradients lie on the host or on disk, the device
// holds two layers of weights and the gradients of one layer. When state lies on disk,
// the host holds a cache of its pages. Code, input data and the runtime of the process
// are not counted; [Task.Resident] adds them for a process that trains on the CPU.
//
// [GPT] and [CNN] say what their layers keep. examples/gpt measures its memory: its peaks equal the predicted peaks to
// the byte, except for pages, which come and go. The method Plan of transformer.Config describes a published model. Its
// tests train all families: the measured peaks differ from the predicted ones by at most the transients of a forward
// step. [CNN] is what package layers runs: its tests compare each component of a run, to the byte. The other models follow
// the same rules and have not been run.
//
// # Time
//
// Times compare plans; they do not promise a rate.
//
//   - A forward step of a layer takes two operations for each multiply-add, a backward step
//     four, at the device's rate for the type. The loss takes three products.
//   - Attention that keeps its probabilities also moves them. Attention in tiles computes the
//     scores once more in the backward step.
//   - A micro-batch reads the weights three times and adds to the gradients.
//   - The update moves its operands once. With states of 16 bits or fewer it also takes some
//     hundred operations an element.
//   - Weights and gradients on another tier move while layers compute. The host updates state
//     on another tier: gradients arrive before the update, weights leave after it, and pages
//     on disk move meanwhile.
package plan
