// Package remat trains a chain of stages in less memory: it keeps some of the activations
// and computes the others again when the backward pass needs them (rematerialization, or
// activation checkpointing).
//
//	chain := remat.Chain[V, S]{Stages: layers, Bytes: bytesOf, SavedBytes: savedBytesOf}
//	costs, err := chain.MeasureCosts(ctx, x, loss, 3)          // bytes and seconds of every stage
//	plan, predicted, err := remat.Planner{}.Plan(costs, 1<<30) // the fastest in 1 GiB
//	plan, predicted, err = remat.Planner{}.Smallest(costs, 5)  // the smallest with 5 more forward steps
//	plan, err = remat.Only(costs, "mlp", "layers.3")           // recompute these, keep the others
//	runner, err := chain.NewRunner(plan)
//	for step := range steps {
//		dx, report, err := runner.Run(ctx, inputs(step), loss) // forward and backward
//	}
//
// A [Stage] has a forward step that keeps nothing, a forward step that saves what the
// backward step needs, and the backward step. A [Plan] is the sequence of such steps in one
// pass. Every plan that packs nothing gives the same gradient, bit for bit, if the stages are
// deterministic.
//
// [Planner] makes plans by any [Method], and with [Tiers] it also moves values to host memory
// and disk or packs them. It returns a lower bound of the time; [Report.Gap] is the distance
// to it. One method each is a function: [KeepAll], [RecomputeAll], [Every], [Chen], [Revolve]
// and [HRevolve] follow a rule, [Only] and [AllBut] names, [Rotor], [Exact] and [Fit] a budget in bytes. A Plan without
// operations keeps all.
// [Plan.Simulate] predicts what a plan takes; [Chain.Run] runs it and measures what it took.
//
// Package [github.com/snug-ml/snug/remat/tape] is for graphs that are not chains, package
// [github.com/snug-ml/snug/remat/pack] keeps values in fewer bits. A stage that packs counts
// the packed bytes in its SavedBytes.
//
// # Memory model
//
// A chain has the stages 0 to n-1. Its values are
//
//	a_i   the input of stage i and output of stage i-1; a_n is the final output
//	s_i   what stage i saves for its backward step, a_{i+1} included
//	d_i   the gradient of the loss with respect to a_i
//
// with the sizes |a_i| = |d_i| and |s_i| >= |a_{i+1}| in bytes. While it works, a
// stage also takes transient bytes: f_i in a forward step, b_i in a backward
// step. A run starts with a_0 in memory, and with room for d_n, which counts as held
// during the whole forward pass. A value a_i is available when it is held itself or within s_{i-1}.
//
//	operation        needs                does                       bytes at its peak
//	ForwardDiscard i a_i                  adds a_{i+1}               held + |a_{i+1}| + f_i
//	ForwardSave i    a_i                  replaces a_{i+1}, if held, held - |a_{i+1}| if held
//	                                      by s_i                     + |s_i| + f_i
//	Backward i       a_i, s_i, d_{i+1}    replaces d_{i+1} by d_i,   held - |d_{i+1}| + |d_i| + b_i
//	                                      then drops s_i
//	DropOutput i     a_{i+1} held itself  drops it                   held - |a_{i+1}|
//	DropSaved i      s_i                  drops it                   held - |s_i|
//
// A value can have one copy at a time, which lives until it is dropped or its
// stage's backward step is done:
//
//	operation        needs                does                       bytes
//	Pack i           s_i, no copy         makes a lossy one          held + |packed s_i|
//	PageHost i       s_i or a_{i+1} held  begins to copy it to host  held; + its size in host memory
//	PageDisk i       itself, no copy      memory or disk             or on disk
//	Fetch i          a copy, and no value begins to load it          held + |s_i| or |a_{i+1}|
//	DropCopy i       a copy               drops it
//
// Transfers overlap with what follows. An operation waits for those that its operands
// come from, and one that drops a value for the copy of it.
//
// The peak of a plan is the largest of these and of the bytes at the start.
//
// b_i never includes |d_i|: the table adds it, and takes d_{i+1} away, as for a backward
// step that writes d_i over d_{i+1}. A step that holds both at a time therefore counts
// |d_{i+1}| in b_i. A linear layer of 64 rows from 256 inputs to 1024 outputs in float32
// has |d_i| = 65,536 and |d_{i+1}| = 262,144 bytes, and so b_i = 262,144; its peak is
// held + |d_i|.
//
// The loss is evaluated within the operation
// that first makes a_n; memory that it uses beyond d_n is not counted, nor are
// parameters and their gradients, which do not depend on the plan.
//
// With [Chain].Hash a run compares the hash of every value that it computes again with the
// hash of the first computation. [Repeat] makes a chain of a loop, [Typed] one of stages whose
// activations differ in type.
//
// Simulation and execution keep the same ledger, the one with declared and the
// other with measured sizes. Where those agree, so do the two reports, byte
// for byte and operation by operation. Transient bytes are measured where the Chain has a
// [Monitor], such as package meter's; otherwise they are the declared ones, and at least the
// values of one tile of [Tiles].
//
// A stage that learns from what it sees, such as batch norm with its running averages, asks
// [FirstPass]: a plan may run it several times for one micro-batch.
package remat
