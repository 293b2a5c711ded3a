// Package layers has the building blocks of models as values: linear layers, convolutions, norms, activations, MLPs, experts,
// attention, embeddings, dropout and losses, with named parameters, forward and backward passes, and exact memory.
//
//	var list []layers.Layer
//	for i := range 6 {
//		list = append(list, layers.NewAttention(fmt.Sprint(i, ".attention"), 64, 4, 2), layers.NewMLP(fmt.Sprint(i, ".mlp"), 64, 256, layers.SiLU, true))
//	}
//	m, err := layers.NewModel(64, layers.MSE{}, layers.Options{Seed: 1}, list...) // a train.Model
//	costs, err := m.Costs(1, 64)                                                 // bytes of a batch of 64 rows
//	plan, predicted, err := remat.Planner{}.Plan(costs, budget)
//	err = m.SetPlan(plan)
//	t, err := train.New(m, train.Options{StateBits: 8, Schedule: train.Constant(1e-3)})
//
// There is no automatic differentiation. A [Layer] computes its output, keeps what its backward step needs, and computes gradients;
// it is a stage of a chain of package remat. [Sequential], [Residual], [Sum] and [Concat] join layers. [Model] is a chain with a
// [Loss]: the parameters in its Trainable are what quant8, accum and offload know by their names, and Backprop adds their gradients
// to any train.Window.
//
// # Rows
//
// An activation is a matrix of rows. For attention and embeddings a row is a token; for convolutions, poolings and norms of images it is
// a whole image with all its channels, of which a Linear behind them reads all elements. Layers keep the number of rows, so that one
// model has either rows that are tokens or rows that are images; a [Decoder] joins two models.
//
// # A layer of your own
//
// A type with the methods of [Layer] goes wherever the layers of this package do. Its operations run in a [Pass]: Get and Put are memory
// for activations, Do calls an operation unless an earlier one failed, Gradient returns where the gradient of a parameter goes, and
// Done says that it is complete. For a function of single elements [Elementwise] is shorter.
//
// # Memory
//
// A layer declares nothing. [Pass.Cost] runs it in a pass that has no memory and counts: output, saved set and the largest transient
// bytes of a forward and of a backward step are exactly those of a run, so that the peak of a plan is exact and
// remat.Report.Mismatches is empty. Norms, activations and dropout within a Sequential, and within blocks, are computed again in
// the backward step instead of kept.
//
// # Types and devices
//
// Weights, activations and their gradients have the DType of the [Options]; sums, statistics and gradients of parameters are
// float32. Layers run on any device, except for [Elementwise], which runs on the CPU in float32, and for [Latent], [ShortConv] and
// [Experts] whose Router has Groups, which run on the CPU. A matrix of a [Linear] may be in 4 or
// 8 bits (Frozen, and the Quantized of its Weight), have an [Adapter] of package qlora,
// or lie in [Pages].
package layers
