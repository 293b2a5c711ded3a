// Package plan predicts what training takes, and finds what to choose so that it fits.
//
// A [Task] is a [Model], a [Device] and a batch. [Task.Predict] returns the bytes of each
// component on each tier, and the time of a step, for one way to do it, a [Run].
// [Task.Fit] finds the fastest Run under a limit and explains it. A [Monitor] counts what a
// run really holds. The program snug does the same from the command line:
//
//	go run github.com/snug-ml/snug/cmd/snug plan -model llama-2b -device 24GB
//
// # Bytes
//
// With N parameters, of which n are trained, elements of E bytes in weights and
// activations, and micro-batches of B samples:
//
//	weights          E·N; frozen ones in 4 bits as package qlora holds them
//	master weights   4n, 2n or none, by the form of package amp's; none beside float32
//	gradients        4n or 2n; during the backward pass the largest parameter
//	optimizer state  what package quant8 says of the rule and its bits, such as 8n or 2.03n
//	activations      the peak of the plan, by [remat.Plan.Simulate], of a chain whose layers
//	                 keep and hold B times what [Layer] says; statistics of the last norm
//	workspace        the largest that a layer or the loss needs at a time, by the functions of
//	                 packages fused and attention; that of the optimizer, if it is larger
//	allowance        a share of activations and workspace
//
// A total is the sum of the peaks of all components, and an upper bound of what is held at one
// time. Of what lies on the host or on disk the device holds two layers of weights, and the
// gradients of one layer; of state that lies on disk the host holds a cache of pages. Code, input data and the runtime of a
// process are not counted.
//
// What transformers and residual networks keep is said with [GPT] and [CNN]. examples/gpt
// measures what it holds, and its peaks are the predicted ones, byte for byte but for pages
// that come and go. The other models follow the same rules and have not been run.
//
// # Time
//
// Times serve to compare. A forward step of a layer takes two operations for each
// multiply-add, and a backward step twice that, over the rate of the type; attention that
// keeps its probabilities moves them besides, and in tiles computes the scores once more in
// the backward step. The loss takes three products. Each micro-batch reads the weights three
// times and adds to the gradients. The update moves its operands once, and does some hundred
// operations for states of 16 bits and fewer. Weights and gradients that are elsewhere move
// while the layers work; the update of state that is elsewhere is the host's, with gradients
// and weights moved before and after it, and what is on disk moved meanwhile.
package plan
