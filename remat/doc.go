// Package remat trades time for memory: it runs the backward pass of a chain
// of stages while it keeps only some of the activations, and recomputes the
// others from them (rematerialization, or activation checkpointing).
//
// A [Plan] is the sequence of operations of one forward and backward pass. Planners make one
// from the [Costs] of the stages: [KeepAll], [RecomputeAll], [Every], [Chen] and [Revolve]
// by a rule, [Rotor], [Exact] and [Fit] under a budget in bytes. [Planner] is one call for
// all of them, and can page to host memory and to disk, and pack, besides. [Planner.Plan]
// returns a lower bound, Report.Bound; [Report.Gap] is the distance to it. [HRevolve] has
// two levels of slots, in memory and on disk. [Chain.MeasureCosts] measures the costs of
// real stages. [Plan.Simulate] predicts what a plan takes; [Chain.Run] executes it on real
// values and measures what it took. Every plan that packs nothing gives the same gradient,
// bit for bit, if the stages are deterministic.
//
// For graphs that are not chains, package [github.com/snug-ml/snug/remat/tape] evicts values
// and computes them again while they run.
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
// step. Held at the start are a_0 and, reserved for the whole forward pass,
// d_n. A value a_i is available when it is held itself or within s_{i-1}.
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
// The peak of a plan is the largest of these and of the bytes at the start. A
// backward step that does not write its result over the gradient it was given
// counts the |d_{i+1}| bytes in b_i. The loss is evaluated within the operation
// that first makes a_n; memory that it uses beyond d_n is not counted, nor are
// parameters and their gradients, which do not depend on the plan.
//
// A run can compare every value that it computes again with what it was first, by
// hash: see [Chain].Hash. [Repeat] makes a chain of a loop.
//
// Simulation and execution keep the same ledger, the one with declared and the
// other with measured sizes. Where those agree, so do the two reports, byte
// for byte and operation by operation.
//
// # Fewer bits
//
// Package [github.com/snug-ml/snug/remat/pack] keeps the masks of ReLU and dropout in one bit
// an element, and other activations in 8.25. A stage that uses it counts the packed bytes in
// its SavedBytes.
package remat
